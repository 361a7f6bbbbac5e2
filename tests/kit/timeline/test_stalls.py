from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.timeline.read import read
from kit.timeline.stalls import stalls

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


def trace(write: Write, span: Span, compute: tuple[int, int]) -> Path:
    """Two collectives of 10 us with 80 us between them."""
    events = [
        span("kernel", "ncclAllReduce", start, 10, pid=0, tid=20, stream=20, device=0, correlation=9)
        for start in (0, 90)
    ]
    begin, end = compute
    events.append(span("kernel", "gemm", begin, end - begin, pid=0, tid=7, stream=7, device=0, correlation=9))
    return write(events)


def test_an_idle_stream_behind_computing_raises_no_alarm(write: Write, span: Span) -> None:
    [row] = stalls(read(trace(write, span, (10, 90))))
    assert (row.span_ns, row.idle_ns, row.hidden_ns, row.lost_ns) == (100_000, 80_000, 80_000, 0)
    assert (row.stall_share, row.alarm, row.waiting_ns) == (0.8, False, None)
    assert row.evidence == "idle 80.0 ms; computing covers all but 0.0 ms".replace("80.0", "0.1")


def test_an_idle_stream_with_nothing_computing_raises_the_alarm(write: Write, span: Span) -> None:
    [row] = stalls(read(trace(write, span, (10, 20))))
    assert (row.lost_ns, row.hidden_ns, row.alarm) == (70_000, 10_000, True)
    assert row.evidence.endswith("while nothing computed")


def test_waiting_inside_a_collective_counts_as_a_stall(data: Path) -> None:
    timeline = read([data / f"h200_static_bucketed_rank{rank}.json.gz" for rank in (0, 1)])
    waited = {rank: sum(row.waiting_ns or 0 for row in stalls(timeline) if row.rank == rank) for rank in (0, 1)}
    assert waited == {0: 88_576_410, 1: 0}
    assert all(row.alarm for row in stalls(timeline))


def test_one_collective_alone_has_no_span(write: Write, span: Span) -> None:
    [path] = [write([span("kernel", "ncclAllReduce", 0, 10, pid=0, tid=20, stream=20, device=0)])]
    assert len(stalls(read(path))) == 0
