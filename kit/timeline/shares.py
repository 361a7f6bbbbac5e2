"""Where the time of phases, streams and process groups goes.

`kit.timeline.measure` splits the whole window and steps; here the same parts are counted inside pieces of it. Phases
tile the window (`kit.timeline.phases`), so their parts add up to the window's exactly, in nanoseconds.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.timeline.activity import activity
from kit.timeline.intervals import Spans, intersect, length, subtract, union
from kit.timeline.kinds import communication_kernels, device_rows
from kit.timeline.phases import segments
from kit.timeline.record import Timeline
from kit.timeline.rows import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRow:
    """One phase of one rank; the four parts sum to `window_ns`, and those of all phases to the rank's window."""

    rank: int
    phase: str
    window_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    idle_ns: int
    communication_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRow:
    """One stream of one rank: `busy_ns` is the union of its events, `busy_share` that of the rank's window."""

    rank: int
    device: int
    stream: int
    events: int
    communication_events: int
    busy_ns: int
    busy_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """Communication of one process group on one rank.

    `exposed_ns`: while nothing computes, counted for this group alone, so groups that run at once both count it.
    `overlap_share`: of the group's communication, what compute hides; None without any.
    """

    rank: int
    group: str
    members: int
    collectives: int
    communication_ns: int
    exposed_ns: int
    overlap_share: float | None


def phases(timeline: Timeline) -> Measured[PhaseRow]:
    """Each rank's window by phase of training, with the parts of `measure.Breakdown`."""
    rows = []
    for rank in timeline.ranks:
        seen = activity(timeline, rank)
        parts = (seen.compute, seen.exposed_communication, seen.exposed_copy, seen.idle, seen.communication)
        for phase, spans in sorted(segments(timeline, seen).items()):
            compute, exposed, copy, idle, communication = (length(intersect(part, spans)) for part in parts)
            rows.append(
                PhaseRow(
                    rank=rank, phase=phase.word, window_ns=length(spans), compute_ns=compute,
                    exposed_communication_ns=exposed, exposed_copy_ns=copy, idle_ns=idle,
                    communication_ns=communication,
                )
            )  # fmt: skip
    return Measured(name="phases", rows=tuple(rows))


def streams(timeline: Timeline) -> Measured[StreamRow]:
    """Each stream's events and busy share of its rank's window."""
    rows = []
    is_device, talks = device_rows(timeline), communication_kernels(timeline)
    for rank in timeline.ranks:
        seen = activity(timeline, rank)
        mine = np.arange(len(timeline))[timeline.rows_of(rank)]
        mine = mine[is_device[mine]]
        places = np.stack([timeline.device[mine].astype(np.int64), timeline.stream[mine]])
        for device, stream in np.unique(places, axis=1).T.tolist():
            here = mine[(timeline.device[mine] == device) & (timeline.stream[mine] == stream)]
            busy = length(_spans(timeline, here))
            rows.append(
                StreamRow(
                    rank=rank, device=device, stream=stream, events=len(here),
                    communication_events=int(talks[here].sum()), busy_ns=busy,
                    busy_share=busy / max(1, seen.end_ns - seen.start_ns),
                )
            )  # fmt: skip
    return Measured(name="streams", rows=tuple(rows))


def groups(timeline: Timeline) -> Measured[GroupRow]:
    """Communication by process group; kernels without a group's name (old files, CUDA graphs) stand under ""."""
    rows = []
    talks = communication_kernels(timeline)
    for rank in timeline.ranks:
        seen = activity(timeline, rank)
        mine = np.arange(len(timeline))[timeline.rows_of(rank)]
        mine = mine[talks[mine]]
        for group in np.unique(timeline.group[mine]).tolist():
            here = mine[timeline.group[mine] == group]
            spans = _spans(timeline, here)
            whole, exposed = length(spans), length(subtract(spans, seen.compute))
            known = timeline.groups[group] if group >= 0 else None
            rows.append(
                GroupRow(
                    rank=rank, group=known.name if known else "", members=len(known.ranks) if known else 0,
                    collectives=len(here), communication_ns=whole, exposed_ns=exposed,
                    overlap_share=(whole - exposed) / whole if whole else None,
                )
            )  # fmt: skip
    return Measured(name="groups", rows=tuple(rows))


def _spans(timeline: Timeline, rows: NDArray[np.int64]) -> Spans:
    return union(timeline.start_ns[rows], timeline.start_ns[rows] + timeline.duration_ns[rows])
