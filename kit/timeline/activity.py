"""What a rank did when: unions of intervals for compute, communication and copies.

On a rank with a device, rows are kernels, copies and sets of all its streams. On a CPU-only rank the threads of
the host are the device, and the same four words are defined on them:

- communication: collective work on the backend's threads (`gloo:all_reduce`, ...), and time a thread spends inside
  calls that start or await a collective (`c10d::*`, `_c10d_functional::*`, `wait_tensor` among them);
- compute: operators and compiled regions, on each thread without the communication calls they hold, and without
  what a backend's thread does inside a collective (packing, unpacking);
- idle: the rest, which is the host between operators: Python, autograd, a data loader, or waiting without a call.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.timeline.intervals import Spans, clip, join, length, subtract, union
from kit.timeline.kinds import (
    communication_kernels,
    device_rows,
    is_collective_call,
    is_collective_work,
    is_compiled_call,
    rows_named,
)
from kit.timeline.record import Category, Timeline

_NOTHING: Spans = (np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Activity:
    """Unions of one rank in int64 nanoseconds; `start_ns` and `end_ns` bound the window they lie in."""

    rank: int
    start_ns: int
    end_ns: int
    compute: Spans
    communication: Spans
    copy: Spans

    @property
    def exposed_communication(self) -> Spans:
        """Communication while nothing computes."""
        return subtract(self.communication, self.compute)

    @property
    def hidden_communication(self) -> Spans:
        """Communication while something computes."""
        return subtract(self.communication, self.exposed_communication)

    @property
    def exposed_copy(self) -> Spans:
        """Copies and sets while nothing computes or communicates."""
        return subtract(self.copy, join(self.compute, self.communication))

    @property
    def idle(self) -> Spans:
        """The window without everything else."""
        window: Spans = (np.array([self.start_ns], np.int64), np.array([self.end_ns], np.int64))
        return subtract(union(*window), join(self.compute, self.communication, self.copy))


def activity(timeline: Timeline, rank: int) -> Activity:
    """What one rank did, over its whole window: from the first to the last thing counted."""
    rows = np.arange(len(timeline))[timeline.rows_of(rank)]
    if timeline.part(rank).cpu_only:
        compute, communication, copy = _host_unions(timeline, rows)
    else:
        compute, communication, copy = _device_unions(timeline, rows)
    busy = join(compute, communication, copy)
    start_ns, end_ns = (int(busy[0][0]), int(busy[1][-1])) if length(busy) else (0, 0)
    return Activity(
        rank=rank, start_ns=start_ns, end_ns=end_ns, compute=compute, communication=communication, copy=copy
    )


def within(whole: Activity, start_ns: int, end_ns: int) -> Activity:
    """The part of an activity inside [start_ns, end_ns), which becomes its window."""
    return Activity(
        rank=whole.rank,
        start_ns=start_ns,
        end_ns=end_ns,
        compute=clip(whole.compute, start_ns, end_ns),
        communication=clip(whole.communication, start_ns, end_ns),
        copy=clip(whole.copy, start_ns, end_ns),
    )


def _device_unions(timeline: Timeline, rows: NDArray[np.int64]) -> tuple[Spans, Spans, Spans]:
    communication = communication_kernels(timeline)[rows]
    # A graph recorded as one row hides its kernels; it counts as compute, and the reader's note says so.
    kernel = np.isin(timeline.category[rows], (Category.KERNEL, Category.GRAPH))
    copy = device_rows(timeline)[rows] & ~kernel
    return (
        _union_of(timeline, rows[kernel & ~communication]),
        _union_of(timeline, rows[communication]),
        _union_of(timeline, rows[copy]),
    )


def _host_unions(timeline: Timeline, rows: NDArray[np.int64]) -> tuple[Spans, Spans, Spans]:
    names = timeline.strings
    host = np.isin(timeline.category[rows], (Category.CPU_OP, Category.ANNOTATION))
    operator = timeline.category[rows] == Category.CPU_OP
    call = host & rows_named(timeline, map(is_collective_call, names))[rows]
    work = host & rows_named(timeline, map(is_collective_work, names))[rows]
    compiled = host & rows_named(timeline, map(is_compiled_call, names))[rows]
    compute, communication = [_NOTHING], [_NOTHING]
    for lane in np.unique(timeline.lane[rows[host]]).tolist():
        here = timeline.lane[rows] == lane
        talking = _union_of(timeline, rows[here & (call | work)])
        communication.append(talking)
        compute.append(subtract(_union_of(timeline, rows[here & (operator | compiled) & ~call & ~work]), talking))
    return join(*compute), join(*communication), _NOTHING


def _union_of(timeline: Timeline, rows: NDArray[np.int64]) -> Spans:
    start = timeline.start_ns[rows]
    return union(start, start + timeline.duration_ns[rows])
