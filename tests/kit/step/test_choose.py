"""Passes chosen by name, or by timing variants on all ranks."""

import pytest
import torch
from small_models import Perceptron, next_token_loss

from kit.display import table
from kit.step.choose import choice_of, variants_of
from kit.step.compiled import compile_step
from kit.step.passes.choice import PassNameError
from kit.step.strategy import DDP, FSDP


def batch():
    ids = torch.randint(0, 61, (4, 17), generator=torch.Generator().manual_seed(0))
    return ids[:, :-1], ids[:, 1:]


def compiled(strategy, passes):
    torch.manual_seed(0)
    model = Perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return compile_step(model, optimizer, next_token_loss, batch(), strategy=strategy, passes=passes)


def measured():
    step = compiled(FSDP(bucket_mb=0.01), "measure")
    state = {name: value.sum().item() for name, value in step.full_state_dict().items()}
    fresh = {name: value.sum().item() for name, value in compiled(DDP(), ()).full_state_dict().items()}
    return step.trials, step.plan, state == fresh, step(batch()).item(), step.steps_done


def test_measuring_keeps_the_fastest_on_the_slowest_rank_and_trains_nothing(ranks2):
    first, second = ranks2.run(measured)
    assert first == second
    trials, plan, untouched, _, done = first
    assert untouched
    assert done == 1
    timed = {row.name: row.seconds for row in trials.rows if not row.same_as}
    assert timed[trials.kept] <= 1.02 * min(timed.values())
    assert "no buckets" in timed
    assert all(seconds > 0 for seconds in timed.values())
    kept = next(row for row in trials.rows if row.name == trials.kept)
    assert (kept.passes, kept.nodes, kept.collectives) == (plan.passes, plan.node_count, len(plan.sends))
    same = next(row for row in trials.rows if row.name == "buckets of 100 MB")
    assert same.same_as == "buckets of 5 MB"  # all of the model fits in either, so it is timed once
    shown = str(table(trials))
    assert f"{same.name}" in shown
    assert "as buckets of 5 MB" in shown
    assert shown.count("kept") == 1


def test_passes_by_name_are_applied_in_that_order(ranks2):
    plan = ranks2.run(lambda: compiled(FSDP(bucket_mb=0.01), ["bucket gathers", "prune"]).plan)[0]
    assert plan.passes == ("remove dead code", "bucket gathers", "prune", "wait before next gather")
    assert sum(send.name.startswith("reduce_scatter") for send in plan.sends) == len(list(Perceptron().parameters()))


def test_an_unknown_pass_is_named_with_the_known_ones():
    with pytest.raises(PassNameError) as error:
        choice_of(["prune", "fuse"], DDP(), check_values=None)
    assert str(error.value) == (
        "pass 'fuse' is not known; expected passes='default', 'measure' or a list of 'prune', 'hoist preparations', "
        "'bucket reductions', 'bucket gathers', 'reshard after forward', 'start gathers early'"
    )


def test_what_is_tried_never_changes_what_the_strategy_keeps_in_memory():
    own = choice_of("measure", FSDP(), check_values=None)
    tried = variants_of(FSDP(), own)
    assert [choice.name for choice in tried][:2] == ["default", "buckets of 5 MB"]
    assert all(choice.passes is None or "reshard after forward" in choice.passes for choice in tried)
