"""A tensor-parallel model compiled into forward and backward graphs against plain single-process training."""

import copy

import pytest
import torch
import torch.distributed as dist
from against_one_process import optimizer_of, relative, token_batches, whole
from small_models import next_token_loss
from split_models import PACKED, PLAN, SEQUENCE, VOCABULARY, split_gpt
from torch import nn

from kit.step.static_module import compile_module
from kit.step.strategy import FSDP, TP

STEPS = 5
NET = {"0": "colwise", "2": "rowwise"}
WHOLE = TP(plan=PLAN | VOCABULARY, packed=PACKED)
ALONG = TP(plan=SEQUENCE, packed=PACKED, sequence_parallel=True)
ON_TWO_AXES = TP(plan=PLAN | VOCABULARY, packed=PACKED, ranks=2, data=FSDP(bucket_mb=0.01))


def gpt(tied):
    return split_gpt(layers=1, tied=tied), next_token_loss, token_batches()


def net(_):
    """The smallest there is, for what is dear."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    data = torch.rand(STEPS, 4, 11, generator=torch.Generator().manual_seed(2))
    return model, lambda model, pair: (model(pair[0]) - pair[1]).square().mean(), [(d[:, :6], d[:, 6:]) for d in data]


def train(strategy, optimizer, dtype, make=gpt, executor="eager", tied=False):
    """Largest relative differences of losses, gradients and parameters; whether gradients show as parameters do."""
    model, loss_of, batches = make(tied)
    model.to(dtype)
    reference = copy.deepcopy(model)
    compiled = compile_module(model, strategy=strategy, executor=executor)
    ours, plain = optimizer_of(optimizer, compiled.parameters()), optimizer_of(optimizer, reference.parameters())
    groups = dist.get_world_size() // (strategy.ranks or dist.get_world_size())
    group = dist.get_rank() // (strategy.ranks or dist.get_world_size())
    losses, gradients, shown = 0.0, 0.0, True
    for batch in batches:
        ours.zero_grad()
        loss = loss_of(compiled, [part.chunk(groups)[group] for part in batch])
        loss.backward()
        plain.zero_grad()
        expected = loss_of(reference, batch)
        expected.backward()
        got = loss.detach().clone()
        dist.all_reduce(got)
        losses = max(losses, relative(got / dist.get_world_size(), expected.detach()))
        for (name, p), (other, q) in zip(compiled.named_parameters(), reference.named_parameters(), strict=True):
            assert name == other
            shown = shown and getattr(p, "placements", None) == getattr(p.grad, "placements", None)
            gradients = max(gradients, relative(whole(p.grad), q.grad))
        ours.step()
        plain.step()
    trained = compiled.full_state_dict()
    assert set(trained) == set(reference.state_dict())
    parameters = max(relative(trained[name], p.detach()) for name, p in reference.named_parameters())
    return losses, gradients, parameters, shown


@pytest.mark.parametrize(("strategy", "executor"), [(WHOLE, "eager"), (ALONG, "aot_eager")], ids=["tp", "tp+sp"])
def test_losses_gradients_and_parameters_equal_one_process(ranks2, strategy, executor):
    for *sgd, shown in ranks2.run(train, strategy, "sgd", torch.float32, gpt, executor):
        assert max(sgd) < 1e-5
        assert shown
    for *adamw, _ in ranks2.run(train, strategy, "adamw", torch.float64):
        assert max(adamw) < 1e-9


def test_a_tied_vocabulary_on_two_axes_equals_one_process(ranks4):
    for *adamw, shown in ranks4.run(train, ON_TWO_AXES, "adamw", torch.float64, gpt, "eager", True):
        assert max(adamw) < 1e-9
        assert shown
    for *sgd, _ in ranks4.run(train, TP(plan=NET, ranks=2, data=FSDP()), "sgd", torch.float32, net):
        assert max(sgd) < 1e-5


def test_inductor_changes_no_result(ranks2):
    for *found, _ in ranks2.run(train, TP(plan=NET), "sgd", torch.float32, net, "inductor"):
        assert max(found) < 1e-5
