"""Why a stream, or the whole device, stood idle: it waited for the host, for other work, or for something else.

After HolisticTraceAnalysis's idle breakdown, with three corrections: the end before a gap is the running maximum of
ends on that stream (streams do overlap themselves), what has no launch in the file is "unknown", not a cause, and
the dependency on another stream is told apart. A gap before an event is
- host wait, if the launch call began after the gap did: the host was late;
- kernel wait, if it had been launched before and the gap is under 30 us: the usual distance of two kernels;
- dependency, if longer, and an event of another stream ended at most 30 us before the gap did (inferred: files do not
  name the event that a stream waits for);
- other: it waited for memory, for a full queue or for something not recorded.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.timeline.kinds import device_rows
from kit.timeline.launches import launch_of
from kit.timeline.record import Timeline
from kit.timeline.rows import Measured

KERNEL_WAIT_NS = 30_000  # HolisticTraceAnalysis's default
WHOLE_DEVICE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRow:
    """Idle time of one stream by cause; `stream` -1 is the whole device, whose `idle_ns` is that of its `Breakdown`.

    The five causes sum to `idle_ns`. Time before the stream's first and after its last event is not counted.
    """

    rank: int
    device: int
    stream: int
    idle_ns: int
    host_wait_ns: int
    kernel_wait_ns: int
    dependency_ns: int
    other_ns: int
    unknown_ns: int
    longest_ns: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gaps:
    """Gaps before events: `row` begins after the gap [start_ns, end_ns); `cause` indexes `CAUSES`."""

    row: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    cause: NDArray[np.int64]


CAUSES = ("host wait", "kernel wait", "dependency", "other", "unknown")
HOST_WAIT, KERNEL_WAIT, DEPENDENCY, OTHER, UNKNOWN = range(len(CAUSES))


def idle(timeline: Timeline) -> Measured[IdleRow]:
    """Idle time by cause for each rank's device as a whole and for each of its streams."""
    rows = []
    is_device = device_rows(timeline)
    for rank in timeline.ranks:
        mine = np.arange(len(timeline))[timeline.rows_of(rank)]
        mine = mine[is_device[mine]]
        if not len(mine):
            continue
        ends = np.sort(timeline.start_ns[mine] + timeline.duration_ns[mine])
        rows.append(_row(rank, WHOLE_DEVICE, WHOLE_DEVICE, gaps(timeline, mine, ends)))
        places = np.stack([timeline.device[mine].astype(np.int64), timeline.stream[mine]])
        for device, stream in np.unique(places, axis=1).T.tolist():
            here = mine[(timeline.device[mine] == device) & (timeline.stream[mine] == stream)]
            rows.append(_row(rank, device, stream, gaps(timeline, here, ends)))
    return Measured(name="idle", rows=tuple(rows))


def gaps(timeline: Timeline, rows: NDArray[np.int64], ends: NDArray[np.int64]) -> Gaps:
    """The gaps in the union of `rows` (device events in order of start), each with its cause.

    `ends`: the sorted ends of all events of the rank's device.
    """
    start, end = timeline.start_ns[rows], timeline.start_ns[rows] + timeline.duration_ns[rows]
    reach = np.maximum.accumulate(end)
    after = np.flatnonzero(start[1:] > reach[:-1]) + 1
    row, begin, stop = rows[after], reach[after - 1], start[after]
    launch = launch_of(timeline)[row]
    launched = timeline.start_ns[launch]
    last_end = ends[np.maximum(np.searchsorted(ends, stop, side="right") - 1, 0)]
    depends = (last_end > begin) & (last_end > stop - KERNEL_WAIT_NS)
    cause = np.where(stop - begin < KERNEL_WAIT_NS, KERNEL_WAIT, np.where(depends, DEPENDENCY, OTHER))
    cause = np.where(launched > begin, HOST_WAIT, cause)
    return Gaps(row=row, start_ns=begin, end_ns=stop, cause=np.where(launch < 0, UNKNOWN, cause))


def _row(rank: int, device: int, stream: int, found: Gaps) -> IdleRow:
    took = found.end_ns - found.start_ns
    host, kernel, depends, other, unknown = (int(took[found.cause == number].sum()) for number in range(len(CAUSES)))
    return IdleRow(
        rank=rank, device=device, stream=stream, idle_ns=int(took.sum()), host_wait_ns=host, kernel_wait_ns=kernel,
        dependency_ns=depends, other_ns=other, unknown_ns=unknown, longest_ns=int(took.max()) if len(took) else 0,
    )  # fmt: skip
