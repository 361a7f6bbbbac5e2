"""`state_dict` of the plain model and optimizer, into a sharded step and out of it."""

import pytest
import torch
import torch.distributed as dist
from small_models import Perceptron, next_token_loss

from kit.ranks import RankError
from kit.step.compiled import compile_step
from kit.step.strategy import DDP, FSDP


def batch(rows=4):
    ids = torch.randint(0, 61, (2 * rows, 17), generator=torch.Generator().manual_seed(5))
    return ids[:, :-1], ids[:, 1:]


def mine():
    return tuple(part.chunk(2)[dist.get_rank()] for part in batch())


def plain(seed):
    torch.manual_seed(seed)
    model = Perceptron(tied=True).double()
    model.register_buffer("scratch", torch.zeros(3), persistent=False)
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        next_token_loss(model, batch()).backward()
        optimizer.step()


def there_and_back(strategy):
    model, optimizer = plain(1)
    train(model, optimizer, 2)
    placed, theirs = plain(2)
    step = compile_step(placed, theirs, next_token_loss, mine(), strategy=strategy)
    step(mine())
    memory = [tensor.data_ptr() for tensor in step._held]
    placed.load_state_dict(model.state_dict())
    theirs.load_state_dict(optimizer.state_dict())
    for _ in range(2):
        step(mine())
    assert [tensor.data_ptr() for tensor in step._held] == memory  # a captured CUDA graph reads there
    train(model, optimizer, 2)
    back, its = plain(3)
    back.load_state_dict(step.full_state_dict())
    its.load_state_dict(step.full_optimizer_state_dict())
    step(mine())
    train(back, its, 1)
    train(model, optimizer, 1)
    return model.state_dict(), back.state_dict(), step.full_state_dict()


@pytest.mark.parametrize("strategy", [DDP(), FSDP()], ids=str)
def test_plain_state_dicts_go_in_and_out(ranks2, strategy):
    for whole, back, ours in ranks2.run(there_and_back, strategy):
        assert list(whole) == list(back) == list(ours)
        for name, value in whole.items():
            torch.testing.assert_close(back[name], value, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(ours[name], value, rtol=1e-9, atol=1e-9)


def test_torch_names_shapes_that_do_not_fit_and_assign_is_refused(ranks2):
    def load(**options):
        model, optimizer = plain(1)
        compile_step(model, optimizer, next_token_loss, mine(), strategy="fsdp")
        model.load_state_dict(Perceptron(tied=True, vocabulary=7).state_dict(), **options)

    with pytest.raises(RankError, match=r"size mismatch for token.weight: .*\[7, 16\]"):
        ranks2.run(load)
    with pytest.raises(RankError, match=r"StateError: load_state_dict\(assign=True\) would put other tensors"):
        ranks2.run(lambda: load(assign=True))


def test_state_of_another_model_is_refused(ranks2):
    def load():
        model, optimizer = plain(1)
        compile_step(model, optimizer, next_token_loss, mine(), strategy="fsdp")
        other = Perceptron(tied=True, width=8)
        theirs = torch.optim.Adam(other.parameters())
        train(other, theirs, 1)
        optimizer.load_state_dict(theirs.state_dict())

    said = r"StateError: optimizer state exp_avg of token.weight is \[61, 8\], expected \[61, 16\]"
    with pytest.raises(RankError, match=said):
        ranks2.run(load)
