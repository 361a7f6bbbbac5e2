"""A tensor-parallel step with packed projections is saved whole and taken up by any strategy."""

import pytest
import torch
from small_models import next_token_loss
from split_models import split_gpt

from kit.step.compiled import compile_step
from kit.step.strategy import DDP, FSDP, TP

SPLIT = {"blocks.*.qkv": "colwise", "blocks.*.out": "rowwise"}
PACKED = {"blocks.*.qkv": 3}
ONE_MODEL, PAIRS = TP(plan=SPLIT, packed=PACKED), TP(plan=SPLIT, packed=PACKED, ranks=2, data=FSDP())


def step_of(strategy, *, seed):
    """A step, and a function that takes steps; every rank has the same batch, so any mean over ranks is the same."""
    model = split_gpt(layers=1).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(seed)
    ids = torch.randint(0, 62, (4, 17), generator=torch.Generator().manual_seed(3))
    batch = ids[:, :-1], ids[:, 1:].contiguous()
    step = compile_step(
        model, torch.optim.AdamW(model.parameters(), lr=1e-2), next_token_loss, batch, strategy=strategy
    )
    return step, lambda count: [step(batch).item() for _ in range(count)]


def saved(strategy, folder):
    step, go = step_of(strategy, seed=1.0)
    go(2)
    step.save(folder)
    return go(2), step.full_state_dict()


def taken_up(strategy, folder, passed_on=None):
    step, go = step_of(strategy, seed=0.5)
    go(1)
    step.load(folder)
    if passed_on is not None:
        step.save(passed_on)
    return go(2), step.full_state_dict()


def test_it_goes_on_bitwise_and_from_pair_to_pair_of_four_ranks_and_under_ddp_within_rounding(ranks2, ranks4, tmp_path):
    losses, parameters = ranks2.run(saved, ONE_MODEL, tmp_path / "step")[0]
    for losses2, parameters2 in ranks2.run(taken_up, ONE_MODEL, tmp_path / "step"):
        assert losses2 == losses
        assert all(torch.equal(parameters[name], parameters2[name]) for name in parameters)
    others = ranks4.run(taken_up, PAIRS, tmp_path / "step", tmp_path / "again")
    others += ranks2.run(taken_up, DDP(), tmp_path / "again")
    for losses2, parameters2 in others:
        assert losses2 == pytest.approx(losses, rel=1e-9)
        for name, value in parameters.items():
            torch.testing.assert_close(parameters2[name], value, rtol=1e-9, atol=1e-9)
