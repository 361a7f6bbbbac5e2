"""Queue length: how many launched events wait for a stream.

+1 at the launch call, -1 at the device start (facts of this room, after HolisticTraceAnalysis). Events without a
launch call are left out first, else the length would go negative (HTA#59). An event that begins before its launch
call begins (clocks of host and device may differ by a microsecond) counts as never queued.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.timeline.launches import launch_of
from kit.timeline.record import Timeline
from kit.timeline.rows import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """Queue of one stream. `mean` is over time, from the first launch to the last start; `empty_share` of that time."""

    rank: int
    device: int
    stream: int
    events: int
    mean: float
    longest: int
    empty_share: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """A count that changes at `at_ns` (int64, sorted) to `value`."""

    rank: int
    device: int
    stream: int
    at_ns: NDArray[np.int64]
    value: NDArray[np.int64]


def queue_lengths(timeline: Timeline) -> tuple[Series, ...]:
    """The queue's length over time for each stream of each rank that has launched events."""
    launch = launch_of(timeline)
    rows = np.flatnonzero(launch >= 0)
    found = []
    places = np.stack([timeline.rank[rows].astype(np.int64), timeline.device[rows], timeline.stream[rows]])
    distinct, place = np.unique(places, axis=1, return_inverse=True)
    place = place.reshape(-1)
    for number, (rank, device, stream) in enumerate(distinct.T.tolist()):
        mine = rows[place == number]
        launched = timeline.start_ns[launch[mine]]
        begun = np.maximum(timeline.start_ns[mine], launched)
        at = np.concatenate([launched, begun])
        change = np.repeat(np.array([1, -1], np.int64), len(mine))
        order = np.lexsort((-change, at))  # of two at one time the launch comes first
        found.append(Series(rank=rank, device=device, stream=stream, at_ns=at[order], value=np.cumsum(change[order])))
    return tuple(found)


def queues(timeline: Timeline) -> Measured[QueueRow]:
    """Mean and longest queue of each stream, and the share of time in which nothing waits."""
    rows = []
    for series in queue_lengths(timeline):
        lasts = np.diff(series.at_ns)
        whole = max(1, int(lasts.sum()))
        held = series.value[:-1]
        rows.append(
            QueueRow(
                rank=series.rank,
                device=series.device,
                stream=series.stream,
                events=len(series.at_ns) // 2,
                mean=float((held * lasts).sum() / whole),
                longest=int(series.value.max()),
                empty_share=float(lasts[held == 0].sum() / whole),
            )
        )
    return Measured(name="queues", rows=tuple(rows))
