"""Collectives played by one process tell a right packing from a wrong one."""

import pytest
import torch

from kit._torch import collectives
from kit._torch.fake_group import fake_world
from kit._torch.tracing import node_note, trace
from kit.step.passes.bucket import bucket_gathers, bucket_reductions
from kit.step.passes.proof import PassError, Values, apply_pass, require_peak
from kit.step.passes.values import NotPlayedError, first_difference, results_of
from kit.step.provenance import SENDS


def step(first, second):
    """Two parameters of one shape, gathered, used, reduced and changed in place."""
    with node_note({SENDS: "parameter"}):
        whole = [collectives.all_gather(shard, "0", 2) for shard in (first, second)]
    gradients = [whole[0] * whole[1].exp(), whole[1] - 2 * whole[0]]
    with node_note({SENDS: "gradient"}):
        reduced = [collectives.reduce_scatter_sum(gradient, "0", 2) for gradient in gradients]
    for shard, gradient in zip((first, second), reduced, strict=True):
        shard.sub_(gradient)
    return [collectives.all_reduce_sum(gradients[0].sum(), "0")]


SHARDS = (torch.rand(3, 2), torch.rand(3, 2))


def traced():
    with fake_world(2):
        return trace(step, SHARDS)


def bucketed(module):
    bucket_reductions(module, 1e6)
    bucket_gathers(module, 1e6)


def swapped(module):
    """Bucketing that hands out the pieces in the wrong order: same bytes, same shapes, other numbers."""
    bucketed(module)
    pieces = [n for n in module.graph.nodes if n.target is torch.ops.aten.slice.Tensor and n.args[1] == 1][:2]
    (_, _, *first), (_, _, *second) = (piece.args for piece in pieces)
    pieces[0].args, pieces[1].args = (*pieces[0].args[:2], *second), (*pieces[1].args[:2], *first)


def test_bucketing_changes_no_number():
    module = traced()
    with fake_world(2):
        after = apply_pass("bucket", module, bucketed)
    Values(SHARDS).require_equal("bucket", module, after)


def test_pieces_handed_out_in_the_wrong_order_are_found():
    module = traced()
    with fake_world(2):
        after = apply_pass("swap", module, swapped)  # lint and counts see nothing
    with pytest.raises(PassError, match=r"^pass 'swap' was undone: on the same tensors result \d differs by "):
        Values(SHARDS).require_equal("swap", module, after)


def test_the_inputs_are_left_alone():
    before = [shard.clone() for shard in SHARDS]
    first, second = results_of(traced(), SHARDS), results_of(traced(), SHARDS)
    assert all(map(torch.equal, before, SHARDS))
    assert first_difference(first, second) == ""
    assert not torch.equal(first[1], SHARDS[0])  # what the step changed in place is among the results


def test_played_ranks_send_what_hand_made_ranks_would():
    def function(x):
        return [collectives.all_gather(x, "0", 2), collectives.all_reduce_sum(x, "0")]

    with fake_world(2):
        module = trace(function, [torch.ones(2)])
    gathered, reduced, _ = results_of(module, [torch.tensor([4.0, 8.0])])
    assert gathered.tolist() == [4.0, 8.0, 3.0, 6.0]  # rank 1 sends 3/4 of it
    assert reduced.tolist() == [7.0, 14.0]


def test_a_collective_that_cannot_be_played_ends_the_comparison_and_not_the_build():
    def function(x):
        ops = torch.ops._c10d_functional
        return [ops.wait_tensor(ops.broadcast(x, 0, "0"))]

    with fake_world(2):
        module = trace(function, [torch.ones(2)])
    with pytest.raises(NotPlayedError):
        results_of(module, [torch.ones(2)])
    Values([torch.ones(2)]).require_equal("any", module, module)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (torch.ones(2), torch.ones(3), "result 0 is torch.float32[3], expected torch.float32[2]"),
        (torch.tensor([1.0, torch.nan]), torch.tensor([torch.nan, 1.0]), "result 0 differs by inf"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "result 0 differs by 0.5"),
        (torch.tensor([1.0, torch.inf]), torch.tensor([1.0, torch.inf]), ""),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.00001]), ""),
    ],
)
def test_a_difference_is_told_from_rounding(old, new, words):
    assert first_difference([old], [new]).startswith(words)
    assert bool(first_difference([old], [new])) is bool(words)


def test_a_peak_above_its_limit_is_refused_with_both_figures():
    require_peak("bucket", 100_000_000, 110_000_000, may_add_bytes=5e6)
    with pytest.raises(PassError) as error:
        require_peak("bucket", 100_000_000, 111_000_000, may_add_bytes=5e6)
    assert str(error.value) == (
        "pass 'bucket' was undone: the predicted peak goes from 100 to 111 MB, at most 110 MB is allowed for it"
    )


def test_reading_before_the_wait_is_found():
    def early(module):
        wait = next(n for n in module.graph.nodes if n.target is collectives.WAIT)
        next(iter(wait.users)).replace_input_with(wait, wait.args[0])

    with pytest.raises(PassError, match=r"the result of .*all_gather.* is read without a wait"):
        apply_pass("early", traced(), early)


def test_writing_what_is_still_being_sent_is_found():
    def function(x):
        whole = collectives.all_gather(x, "0", 2)
        x.add_(1)
        return [whole]

    def late(module):
        nodes = list(module.graph.nodes)
        wait = next(n for n in nodes if n.target is collectives.WAIT)
        nodes[-2].append(wait)

    with fake_world(2):
        module = trace(function, [torch.ones(2)])
    with pytest.raises(PassError, match=r"what .*all_gather.* sends is written before it has arrived"):
        apply_pass("late", module, late)
