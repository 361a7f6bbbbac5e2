"""A step with several graphs, one for each form of batch, on two ranks."""

import copy

import pytest
import torch
import torch.distributed as dist
from small_models import Perceptron, next_token_loss

from kit.step.compiled import compile_step
from kit.step.strategy import DDP, FSDP


def batches(lengths, rows=4):
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(0, 61, (rows, length + 1), generator=generator) for length in lengths]
    return [(step[:, :-1], step[:, 1:].clone()) for step in ids]


def mine(batch):
    return tuple(part.chunk(2)[dist.get_rank()] for part in batch)


def compiled(strategy, example, variants):
    torch.manual_seed(0)
    model = Perceptron().double()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = compile_step(model, optimizer, next_token_loss, example, strategy=strategy, variants=variants)
    return step, plain, model


def said(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return "nothing was raised"


def train(strategy, lengths, variants):
    steps = batches(lengths)
    step, plain, _ = compiled(strategy, mine(steps[0]), variants)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    worst = 0.0
    for batch in steps:
        got = step(mine(batch)).item()
        optimizer.zero_grad()
        loss = next_token_loss(plain, batch)
        loss.backward()
        optimizer.step()
        worst = max(worst, abs(got - loss.item()))
    trained = step.full_state_dict()
    parameters = max((trained[name] - p).abs().max().item() for name, p in plain.named_parameters())
    return worst, parameters, len(step.plans), step.steps_done, said(lambda: step(mine(batches([5])[0])))


@pytest.mark.parametrize("strategy", [DDP(), FSDP(bucket_mb=0.01)], ids=str)
def test_variants_train_one_model_as_one_process_does(ranks2, strategy):
    for loss, parameters, graphs, done, refused in ranks2.run(train, strategy, [16, 8, 16, 12, 8], 3):
        assert loss < 1e-12
        assert parameters < 1e-9
        assert graphs == 3
        assert done == 5
        assert refused.startswith("batch leaf 0 is int64[2, 5] on cpu, the step was compiled for int64[2, 16] on cpu")
        assert refused.endswith("All 3 variants are built, for other batches")


def call_with_different_lengths():
    step, _, model = compiled(DDP(), mine(batches([16])[0]), 2)
    before = model.head.weight.sum().item()
    text = said(lambda: step(mine(batches([16 - 8 * dist.get_rank()])[0])))
    loss = step(mine(batches([8])[0])).item()  # the group is as good as before
    return text, len(step.plans), before != model.head.weight.sum().item(), loss


def test_ranks_called_with_different_batches_are_told_so_and_none_hangs(ranks2):
    first, second = ranks2.run(call_with_different_lengths)
    assert first[0] == second[0]
    assert first[0].startswith(
        "ranks were called with different batches: rank 0: 1 micro-batches of int64[2, 16], int64[2, 16] nested as "
    )
    assert "; rank 1: 1 micro-batches of int64[2, 8], int64[2, 8]" in first[0]
    assert first[1:] == second[1:] == (2, True, first[3])


def call_outside():
    step, _, _ = compiled(DDP(), mine(batches([16])[0]), 1)
    return said(lambda: step(mine(batches([8])[0]))), said(lambda: compiled(DDP(), mine(batches([16])[0]), 5))


def test_without_variants_another_shape_is_refused_as_ever(ranks2):
    refused, too_many = ranks2.run(call_outside)[0]
    assert refused == (
        "batch leaf 0 is int64[2, 8] on cpu, the step was compiled for int64[2, 16] on cpu; pad or drop the batch to "
        "that shape, or compile a step for the new one"
    )
    assert too_many.startswith("variants is 5; expected 1 to 4 graphs.")
