"""Functional all-gathers on CPU tensors go another way than gloo's coalesced gather and give the same."""

import torch

from kit._torch import gloo_gathers  # noqa: F401


def gathered():
    """What each operator gives on this rank, and the names of what ran inside one of them."""
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional

    rank, group = dist.get_rank(), dist.group.WORLD.group_name
    ops = torch.ops._c10d_functional
    mine = torch.arange(6.0).reshape(2, 3) + 10 * rank
    with torch.profiler.profile() as profile:
        one = ops.wait_tensor(ops.all_gather_into_tensor(mine, 2, group))
    several = [ops.wait_tensor(t) for t in ops.all_gather_into_tensor_coalesced([mine, mine.int()[:1]], 2, group)]
    whole = functional.wait_tensor(functional.all_gather_tensor(mine, 1, dist.group.WORLD))
    return one, several, whole, {event.key for event in profile.key_averages()}


def test_values_come_in_rank_order_and_by_the_plain_gather(ranks2):
    first, second = torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(2, 3) + 10
    for one, several, whole, ran in ranks2.run(gathered):
        assert one.equal(torch.cat([first, second]))
        assert several[0].equal(one)
        assert several[1].equal(torch.cat([first[:1], second[:1]]).int())
        assert several[1].dtype == torch.int32
        assert whole.equal(torch.cat([first, second], dim=1))
        assert "_c10d_functional::all_gather_into_tensor_out" in ran


def compiled_gather(executor):
    import torch
    import torch.distributed as dist

    group, ops = dist.group.WORLD.group_name, torch.ops._c10d_functional

    def double(tensor):
        return ops.wait_tensor(ops.all_gather_into_tensor(tensor, 2, group)) * 2

    return torch.compile(double, backend=executor, fullgraph=True)(torch.ones(2) * dist.get_rank())


def test_compiled_graphs_have_it_too(ranks2):
    for found in ranks2.run(compiled_gather, "aot_eager"):
        assert found.tolist() == [0, 0, 2, 2]
