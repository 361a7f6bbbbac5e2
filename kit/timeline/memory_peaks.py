"""When memory was highest on each rank, and what ran then: operator, module and line.

From the memory events of a live profile (`kit.profile(..., memory=True)`). On a GPU the totals are the caching
allocator's. On the CPU torch counts from the profiler's start, so parameters made before are not in them (a tensor
freed that was made before counts below zero).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.timeline.attribution import line_names, module_names, operator_names
from kit.timeline.kernel_calls import kernel_calls
from kit.timeline.memory_counters import allocators
from kit.timeline.nesting import HOST_CATEGORIES, enclosing
from kit.timeline.origins import KernelOrigins
from kit.timeline.record import Timeline
from kit.timeline.rows import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakRow:
    """The allocator of one device as one rank used it.

    `at_peak_ns`: after the rank's first memory event. `operator`, `module`, `line`: what asked for the memory that made
    the peak, "" where the profile does not tell. `reserved_peak_bytes` is 0 on the CPU, which reserves nothing.
    """

    rank: int
    device: str
    allocations: int
    releases: int
    first_bytes: int
    peak_bytes: int
    last_bytes: int
    reserved_peak_bytes: int
    at_peak_ns: int
    operator: str
    module: str
    line: str


def memory_peaks(timeline: Timeline, *, origins: KernelOrigins | None = None) -> Measured[PeakRow]:
    """One row for each rank and device.

    `origins` (`kit.kernel_origins(step)`): names module and line inside the graph of a compiled step, which Python
    frames cannot. Inductor's code takes memory between its kernels: that belongs to the kernel that follows.
    """
    calls = None if origins is None else kernel_calls(timeline, origins).call
    described = [] if origins is None else [call for graph in origins.graphs for call in graph.calls]
    operators, modules, lines = operator_names(timeline), module_names(timeline), line_names(timeline)
    rows = []
    for allocator in allocators(timeline):
        mine = allocator.rows
        allocated, changed = timeline.memory_allocated_bytes[mine], timeline.memory_changed_bytes[mine]
        at = timeline.memory_at_ns[mine]
        peak = int(np.argmax(allocated))
        row = _open_row(timeline, int(mine[peak]))
        place = (str(operators[row]), str(modules[row]), str(lines[row])) if row >= 0 else ("", "", "")
        if calls is not None and row >= 0 and (owner := _owner(timeline, calls, row, int(at[peak]))) >= 0:
            call = described[int(calls[owner])]
            place = (place[0], ", ".join(call.modules[:1]), ", ".join(call.lines[:1]))
        rows.append(
            PeakRow(
                rank=allocator.rank,
                device=allocator.device,
                allocations=int((changed > 0).sum()),
                releases=int((changed < 0).sum()),
                first_bytes=int(allocated[0] - changed[0]),
                peak_bytes=int(allocated[peak]),
                last_bytes=int(allocated[-1]),
                reserved_peak_bytes=int(timeline.memory_reserved_bytes[mine].max()),
                at_peak_ns=int(at[peak] - at[0]),
                operator=place[0], module=place[1], line=place[2],
            )
        )  # fmt: skip
    notes = () if rows else ("no memory events in this timeline; record them with kit.profile(..., memory=True)",)
    return Measured(name="memory", rows=tuple(rows), notes=notes)


def _owner(timeline: Timeline, calls: NDArray[np.int64], row: int, at_ns: int) -> int:
    """The attributed range around a row, else the next one inside it; -1 for neither."""
    around = int(enclosing(timeline, np.array([row]), calls >= 0)[0])
    if around >= 0:
        return around
    later = np.flatnonzero((calls >= 0) & (timeline.lane == timeline.lane[row]) & (timeline.start_ns >= at_ns))[:1]
    inside = enclosing(timeline, later, np.arange(len(timeline)) == row)
    return int(later[0]) if len(later) and inside[0] == row else -1


def _open_row(timeline: Timeline, event: int) -> int:
    """The innermost host range of the event's thread that is open when it happens; -1 for none."""
    at = timeline.memory_at_ns[event]
    open_then = (timeline.start_ns <= at) & (at < timeline.start_ns + timeline.duration_ns)
    here = (timeline.lane == timeline.memory_lane[event]) & (timeline.rank == timeline.memory_rank[event])
    found = np.flatnonzero(open_then & here & np.isin(timeline.category, HOST_CATEGORIES))
    return int(found[-1]) if len(found) else -1  # rows are in order of start, holders first
