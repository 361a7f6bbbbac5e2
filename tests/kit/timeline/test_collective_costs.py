import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.timeline.activity import activity
from kit.timeline.collective_costs import collectives, stragglers
from kit.timeline.intervals import length
from kit.timeline.lateness import lateness
from kit.timeline.match import match
from kit.timeline.read import read

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]
GROUP = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "dtype": "Float"}


def all_reduce(span: Span, start: int, end: int) -> dict[str, Any]:
    args = {"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, **GROUP}
    return span("kernel", "ncclAllReduce", start, end - start, pid=0, tid=20, stream=20, device=0, **args)


def work(span: Span, start: int, end: int) -> dict[str, Any]:
    return span("kernel", "gemm", start, end - start, pid=0, tid=7, stream=7, device=0)


@pytest.mark.parametrize(
    ("between", "cause"),
    [
        ([("gemm", 110, 400)], "compute"),
        ([("gemm", 110, 210)], "host"),
        ([("gemm", 110, 210), ("enumerate(DataLoader)#_Iter.__next__", 215, 399)], "data"),
    ],
)
def test_the_reason_of_a_late_rank_is_told(
    write: Write, span: Span, between: list[tuple[str, int, int]], cause: str
) -> None:
    """Both stand together at the first all-reduce; rank 1 comes 190 us late to the second."""
    early = [all_reduce(span, 0, 100), work(span, 110, 210), all_reduce(span, 210, 450)]
    late = [all_reduce(span, 0, 100), all_reduce(span, 400, 450)]
    for name, start, end in between:
        late.append(work(span, start, end) if name == "gemm" else span("user_annotation", name, start, end - start))
    paths = [write(events, rank=rank, name=f"rank{rank}.json") for rank, events in enumerate((early, late))]
    timeline = read(paths)
    first, second = collectives(timeline)
    assert (first.late_rank, first.why) == (None, "")
    assert (second.late_rank, second.late_ns, second.why) == (1, 190_000, cause)
    assert (second.transfer_ns, second.shortest_ns, second.size_bytes) == (50_000, 50_000, 4_000)
    assert second.algorithm_gbps == second.bus_gbps == 0.08  # two ranks: the factor is 1
    assert second.confidence == "order in group, sizes agree, times agree"
    assert [(row.rank, row.cost_ns, row.why) for row in stragglers(timeline)] == [(1, 190_000, cause), (0, 0, "")]


@pytest.mark.parametrize("kind", ["ddp_eager", "static_bucketed", "static_cudagraph"])
def test_the_parts_of_a_lateness_add_up_to_what_was_gained(data: Path, kind: str) -> None:
    timeline = read([data / f"h200_{kind}_rank{rank}.json.gz" for rank in (0, 1)])
    found = lateness(timeline, match(timeline))
    assert any(row.cause for row in found)
    for row in found:
        if row.cause:
            assert row.compute_ns + row.communication_ns + row.copy_ns + row.idle_ns == row.gained_ns
            assert 0.8 * row.late_ns <= row.gained_ns <= 1.2 * row.late_ns
            # What is left for idle is what the activity calls idle, once both ranks have begun.
            late, first = (activity(timeline, rank) for rank in (row.late_rank, row.first_rank))
            if row.since_ns > max(late.start_ns, first.start_ns):
                assert row.idle_ns <= length(late.idle)


def test_waiting_and_reasons_of_own_captures(data: Path) -> None:
    golden = json.loads((data / "h200_golden.json").read_text())["independent"]
    for kind, late in (("ddp_eager", 0), ("static_bucketed", 1)):
        timeline = read([data / f"h200_{kind}_rank{rank}.json.gz" for rank in (0, 1)])
        key = "+".join(f"gpt163m_{kind}_rank{rank}.json.gz" for rank in (0, 1))
        first = stragglers(timeline)[0]
        assert (first.rank, first.why) == (late, "host")
        assert {row.rank: row.waited_ns for row in stragglers(timeline)} == dict(
            enumerate(golden[key]["waiting_ns_per_rank"])
        )


def test_bus_bandwidth_of_the_largest_all_reduce_is_that_of_the_link(data: Path) -> None:
    """The host's own benchmark on these GPUs: 293 GB/s bus at 256 MB."""
    timeline = read([data / f"h200_ddp_eager_rank{rank}.json.gz" for rank in (0, 1)])
    largest = max(collectives(timeline), key=lambda row: row.size_bytes or 0)
    assert largest.size_bytes == 157_694_976
    assert largest.bus_gbps == pytest.approx(293, rel=0.02)


def test_dlrm_names_the_late_ranks_that_hta_names(shared_data: Path) -> None:
    golden = json.loads((shared_data / "public/golden.json").read_text())["hta_0_5_0"]["param/dlrm"]
    rows = stragglers(read(shared_data / "public/param/dlrm"))
    assert sorted(sorted(rows, key=lambda row: row.waited_ns)[n].rank for n in (0, 1)) == golden["stragglers"]
    assert (rows[0].rank, rows[0].why) == (7, "host")


def test_clocks_that_differ_name_nobody(shared_data: Path) -> None:
    timeline = read([shared_data / f"public/hta/sampled/rank{rank}.json.gz" for rank in (0, 1)])
    assert {row.late_rank for row in collectives(timeline)} == {None}
    assert len(stragglers(timeline)) == 0
    assert "nobody is named late" in stragglers(timeline).notes[-1]


def test_one_rank_alone_says_what_is_missing(data: Path) -> None:
    found = collectives(read(data / "h200_ddp_eager_rank0.json.gz"))
    assert len(found) == 0
    assert found.notes == (
        "one rank alone: waiting and transfer cannot be told apart; read the traces of all ranks together",
    )
