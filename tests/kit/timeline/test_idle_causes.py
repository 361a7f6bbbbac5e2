from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.timeline.idle_causes import WHOLE_DEVICE, idle
from kit.timeline.measure import breakdown
from kit.timeline.read import read

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


def test_each_cause_of_a_gap_is_told(write: Write, span: Span) -> None:
    plan = [  # launched at, begins, takes, stream
        (0, 100, 50, 7),
        (1, 160, 40, 7),  # 10 us after the last, launched long before: kernel wait
        (230, 250, 50, 7),  # launched 30 us after the last ended: host wait, 50 us
        (2, 300, 100, 9),  # of another stream, until 400
        (3, 410, 10, 7),  # waits for it: dependency, 110 us
        (4, 600, 10, 7),  # nothing ends near: other, 180 us
    ]
    events = []
    for call, (launched, begun, took, stream) in enumerate(plan, 1):
        events.append(span("cuda_runtime", "cudaLaunchKernel", launched, 1, correlation=call))
        events.append(span("kernel", "k", begun, took, pid=0, tid=stream, correlation=call, stream=stream, device=0))
    events.append(span("kernel", "orphan", 700, 10, pid=0, tid=7, correlation=99, stream=7, device=0))
    row = next(row for row in idle(read(write(events))) if row.stream == 7)
    assert (row.kernel_wait_ns, row.host_wait_ns, row.dependency_ns, row.other_ns, row.unknown_ns) == (
        10_000, 50_000, 110_000, 180_000, 90_000,
    )  # fmt: skip
    assert (row.idle_ns, row.longest_ns) == (440_000, 180_000)


def test_a_gap_begins_at_the_running_maximum_of_ends(write: Write, span: Span) -> None:
    spans = [(0, 100), (10, 20), (120, 10)]  # the second ends inside the first
    events = [
        span("kernel", "k", start, took, pid=0, tid=7, correlation=9, stream=7, device=0) for start, took in spans
    ]
    assert [row.idle_ns for row in idle(read(write(events)))] == [20_000, 20_000]


@pytest.mark.parametrize("kind", ["ddp_eager", "static_bucketed", "static_cudagraph"])
def test_causes_add_up_to_the_idle_time_of_the_breakdown(data: Path, kind: str) -> None:
    timeline = read([data / f"h200_{kind}_rank{rank}.json.gz" for rank in (0, 1)])
    whole = {row.rank: row for row in idle(timeline) if row.stream == WHOLE_DEVICE}
    for part in breakdown(timeline):
        row = whole[part.rank]
        causes = row.host_wait_ns + row.kernel_wait_ns + row.dependency_ns + row.other_ns + row.unknown_ns
        assert causes == row.idle_ns == part.idle_ns
