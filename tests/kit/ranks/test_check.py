"""Collectives that do not fit together are an error on all ranks, never a number and never a dead rank."""

import pytest

from kit.ranks.errors import RankError
from kit.ranks.group import Ranks

SUM = "y = torch.ones(1)\ndist.all_reduce(y)\ny.item()"


def mismatch(ranks: Ranks, code: str) -> str:
    with pytest.raises(RankError) as caught:
        ranks.execute(code, filename="<c>")
    assert ranks.alive == (0, 1)
    assert ranks.epoch == 0, "none was begun, so the group is kept"
    assert ranks.execute(SUM) == [2.0, 2.0]
    return str(caught.value)


def test_a_bigger_last_batch_on_one_rank(pair: Ranks) -> None:
    text = mismatch(pair, "rows = 4 if rank == 0 else 8\nx = torch.ones(rows, 3)\ndist.all_reduce(x)")
    assert text == (
        "ranks 0, 1: CollectiveMismatchError: ranks disagree on a collective; expected the same call, shape and dtype "
        "on all of them\n"
        "rank 0: all_reduce(float32[4, 3], RedOpType.SUM) at <c>, line 3: dist.all_reduce(x)\n"
        "rank 1: all_reduce(float32[8, 3], RedOpType.SUM) at <c>, line 3: dist.all_reduce(x)\n"
        "None was begun. Make them equal (pad or drop a last, smaller batch), or call it on all ranks.\n"
        "    <c>, line 3: dist.all_reduce(x)"
    )
    assert pair.pull("tuple(x.shape)") == [(4, 3), (8, 3)]


def test_equal_bytes_of_another_dtype(pair: Ranks) -> None:
    text = mismatch(
        pair,
        "x = torch.ones(6) if rank == 0 else torch.ones(3, dtype=torch.float64)\ndist.all_reduce(x)",
    )
    assert "rank 0: all_reduce(float32[6], RedOpType.SUM)" in text
    assert "rank 1: all_reduce(float64[3], RedOpType.SUM)" in text


def test_two_kinds_of_collective(pair: Ranks) -> None:
    text = mismatch(pair, "x = torch.ones(2)\nif rank == 0:\n    dist.barrier()\nelse:\n    dist.all_reduce(x)")
    assert "rank 0: barrier() at <c>, line 3: dist.barrier()" in text
    assert "rank 1: all_reduce(float32[2], RedOpType.SUM) at <c>, line 5: dist.all_reduce(x)" in text


def test_two_sources_of_a_broadcast(pair: Ranks) -> None:
    assert "broadcast(float32[2], 1)" in mismatch(pair, "dist.broadcast(torch.ones(2), src=rank)")


def test_a_mismatch_in_a_subgroup(pair: Ranks) -> None:
    pair.execute("sub = dist.new_group([0, 1])")
    assert "float32[2]" in mismatch(pair, "dist.all_reduce(torch.ones(1 + rank), group=sub)")


@pytest.mark.parametrize(
    "code",
    [
        "x = torch.ones(2); dist.all_reduce(x); x.tolist() == [2.0, 2.0]",
        "x = torch.ones(2); dist.broadcast(x * (rank + 1), 0); True",
        "xs = [torch.zeros(1)] * 2; dist.all_gather(xs, torch.ones(1)); xs[1].item() == 1.0",
        "o = [None, None]; dist.all_gather_object(o, 'a' * (1 + rank)); o == ['a', 'aa']",
        "o = [rank]; dist.broadcast_object_list(o, src=1); o == [1]",
        "x = torch.ones(1); dist.all_reduce(x, async_op=True).wait(); x.item() == 2.0",
        "dist.send(torch.ones(1), 1) if rank == 0 else dist.recv(torch.ones(1), 0); True",
        "out = torch.zeros(3); dist.all_to_all_single(out, torch.ones(3), [1, 2] if rank == 0 else [2, 1], "
        "[1, 2] if rank == 0 else [2, 1]); out.sum().item() == 3.0",
        "x = torch.zeros(1); dist.scatter(x, [torch.ones(1), torch.ones(1)] if rank == 0 else None, src=0); "
        "x.item() == 1.0",
        "g = [dist.new_group([0]), dist.new_group([1])][rank]; x = torch.ones(2 + rank); dist.all_reduce(x, group=g); "
        "x.sum().item() == 2.0 + rank",
    ],
)
def test_collectives_that_fit_give_what_torch_gives(pair: Ranks, code: str) -> None:
    assert pair.execute(code) == [True, True]


def test_many_checked_collectives_leave_no_keys_behind(pair: Ranks) -> None:
    def reduce_often(times: int) -> int:
        import torch
        import torch.distributed as dist

        for _ in range(times):
            dist.all_reduce(torch.ones(1))
        dist.barrier()
        store = dist.distributed_c10d._get_default_store()
        return int(store.num_keys())

    few, many = pair.run(reduce_often, 5)[0], pair.run(reduce_often, 200)[0]
    assert many <= few + 4


def test_a_compiled_function_keeps_its_collective_in_one_graph(pair: Ranks) -> None:
    code = (
        "@torch.compile(backend='eager', fullgraph=True)\ndef double(x):\n    y = x * 2\n    dist.all_reduce(y)\n"
        "    return y\n\ndouble(torch.ones(2)).tolist()"
    )
    assert pair.execute(code) == [[4.0, 4.0], [4.0, 4.0]]


def test_a_function_that_only_one_rank_traces_does_not_wait(pair: Ranks) -> None:
    code = (
        "from torch._subclasses.fake_tensor import FakeTensorMode\n"
        "if rank == 0:\n    with FakeTensorMode():\n        dist.all_reduce(torch.ones(2), async_op=False)\n'passed'"
    )
    assert pair.execute(code, timeout=20)[1] == "passed"
