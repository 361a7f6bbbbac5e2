from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.timeline.measure import breakdown
from kit.timeline.phases import Phase, phase_of
from kit.timeline.read import read
from kit.timeline.shares import groups, phases, streams

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


def kernel(span: Span, name: str, start: int, took: int, call: int, *, stream: int = 7) -> dict[str, Any]:
    return span("kernel", name, start, took, pid=0, tid=stream, correlation=call, stream=stream, device=0)


def test_each_kernel_has_the_phase_of_the_range_that_launched_it(write: Write, span: Span) -> None:
    ranges = [
        ("user_annotation", "enumerate(DataLoader)#_Iter.__next__", 1),
        ("cpu_op", "aten::linear", 1),
        ("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 2),
        ("cpu_op", "c10d::allreduce_", 2),  # a hook, on autograd's thread
        ("user_annotation", "Optimizer.step#SGD.step", 1),
    ]
    events = []
    for n, (category, name, tid) in enumerate(ranges):
        events.append(span(category, name, 100 * n, 50, tid=tid))
        events.append(span("cuda_runtime", "cudaLaunchKernel", 100 * n + 1, 5, tid=tid, correlation=n + 1))
        events.append(kernel(span, f"k{n}", 1000 + 100 * n, 60, n + 1))
    timeline = read(write([*events, kernel(span, "orphan", 900, 10, 77)]))
    found = {timeline.strings[timeline.name[row]]: Phase(phase_of(timeline)[row]).word for row in range(len(timeline))}
    assert [found[name] for name in ("orphan", "k0", "k1", "k2", "k3", "k4")] == [
        "unknown", "data", "forward", "backward", "backward", "optimizer",
    ]  # fmt: skip


def test_a_replayed_graph_has_no_phases(data: Path) -> None:
    [row] = phases(read(data / "h200_static_cudagraph_rank0.json.gz"))
    assert (row.phase, row.window_ns) == ("unknown", 102_824_637)


@pytest.mark.parametrize("kind", ["h200_ddp_eager", "h200_static_bucketed", "gloo_ddp"])
def test_phases_add_up_to_the_breakdown_of_the_window(data: Path, kind: str) -> None:
    timeline = read([data / f"{kind}_rank{rank}.json.gz" for rank in (0, 1)])
    for whole in breakdown(timeline):
        rows = [row for row in phases(timeline) if row.rank == whole.rank]
        assert {"forward", "backward", "optimizer"} <= {row.phase for row in rows}
        names = (
            "window_ns", "compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns", "communication_ns",
        )  # fmt: skip
        assert [sum(getattr(row, name) for row in rows) for name in names] == [getattr(whole, name) for name in names]
        for row in rows:
            parts = row.compute_ns + row.exposed_communication_ns + row.exposed_copy_ns + row.idle_ns
            assert parts == row.window_ns


def test_streams_and_groups_of_a_capture(data: Path) -> None:
    timeline = read([data / f"h200_ddp_eager_rank{rank}.json.gz" for rank in (0, 1)])
    by_rank = {row.rank: row for row in groups(timeline)}
    for whole in breakdown(timeline):
        row = by_rank[whole.rank]
        assert (row.group, row.members, row.collectives) == ("0", 2, 28)
        assert row.communication_ns == whole.communication_ns  # one group is all there is
        assert row.exposed_ns == whole.exposed_communication_ns
        assert row.overlap_share == whole.overlap_share
    talking = [row for row in streams(timeline) if row.communication_events]
    assert [(row.stream, row.events, row.busy_ns) for row in talking] == [(17, 28, 9_032_963), (17, 28, 80_017_456)]
