"""Passes proved and measured, and several graphs for one step, on GPUs."""

import pytest
import torch
from small_models import GPT, next_token_loss

from kit.step.compiled import compile_step
from kit.step.strategy import DDP, FSDP


def compiled(strategy, **options):
    from kit.ranks import rank_device

    device = torch.device(rank_device())
    torch.manual_seed(0)
    model = GPT(layers=2).to(device)
    ids = torch.randint(0, 61, (4, 17), generator=torch.Generator().manual_seed(1)).to(device)
    batches = (ids[:, :-1], ids[:, 1:]), (ids[:, :8], ids[:, 1:9])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return compile_step(model, optimizer, next_token_loss, batches[0], strategy=strategy, **options), batches


def measured_and_plain(strategy):
    step, (batch, _) = compiled(strategy, executor="cuda_graph", passes="measure", check_values=True)
    plain, _ = compiled(strategy, executor="eager")
    losses = [[one(batch).item() for _ in range(7)] for one in (step, plain)]
    return step.trials, step.plan.undone, losses


@pytest.mark.parametrize("strategy", [DDP(), FSDP(bucket_mb=0.01)], ids=str)
def test_measuring_cuda_graphs_trains_nothing_and_all_ranks_keep_one(gpu_ranks, strategy):
    results = gpu_ranks.run(measured_and_plain, strategy)
    assert len({trials.kept for trials, *_ in results}) == 1
    for _, undone, (measured, plain) in results:
        assert undone == ()
        assert measured == pytest.approx(plain, rel=1e-4)


def two_forms(executor):
    step, (long, short) = compiled(DDP(), executor=executor, variants=2)
    plain, _ = compiled(DDP(), variants=2)
    order = (long, short, long, long, short, long, short, long, short, short)
    return [[one(batch).item() for batch in order] for one in (step, plain)], len(step.plans)


@pytest.mark.parametrize("executor", ["inductor", "cuda_graph"])
def test_two_graphs_train_one_model(gpu_ranks, executor):
    for (ours, plain), graphs in gpu_ranks.run(two_forms, executor):
        assert graphs == 2
        assert ours == pytest.approx(plain, rel=1e-3)
