"""Copies and sets: how many bytes went where, how fast, over time.

Bandwidth of a copy is its bytes / its duration (1 byte/ns = 1 GB/s). A kind is the first two words of the name
(`Memcpy HtoD`), as HolisticTraceAnalysis's counters have it. Copies of a few kilobytes show latency, not bandwidth:
the fastest says what the path can do.
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.timeline.record import Category, Timeline
from kit.timeline.rows import Measured

_KIND = re.compile(r"\A(Memcpy \w+|Memset)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRow:
    """Copies of one kind on one rank. Bandwidths are None when the file does not say how many bytes they move.

    `mean_gbps` is all bytes / all time. `pageable` copies had to be staged by the driver: pinned memory avoids it.
    """

    rank: int
    kind: str
    copies: int
    pageable: int
    moved_bytes: int
    total_ns: int
    mean_gbps: float | None
    median_gbps: float | None
    fastest_gbps: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BandwidthSeries:
    """Summed bandwidth of the copies of one kind that run at `at_ns`, until the next entry, in GB/s."""

    rank: int
    kind: str
    at_ns: NDArray[np.int64]
    gbps: NDArray[np.float64]


def copies(timeline: Timeline) -> Measured[CopyRow]:
    """Count, bytes and bandwidth by kind of copy, most time first."""
    rows = []
    for rank, kind, mine in _by_kind(timeline):
        moved, took = timeline.copied_bytes[mine], timeline.duration_ns[mine]
        known = (moved >= 0) & (took > 0)
        speed = moved[known] / took[known]
        total = int(took[known].sum())
        pageable = [("Pageable" in timeline.strings[name]) for name in timeline.name[mine].tolist()]
        rows.append(
            CopyRow(
                rank=rank,
                kind=kind,
                copies=len(mine),
                pageable=sum(pageable),
                moved_bytes=int(moved[moved >= 0].sum()),
                total_ns=int(took.sum()),
                mean_gbps=float(moved[known].sum() / total) if total else None,
                median_gbps=float(np.median(speed)) if len(speed) else None,
                fastest_gbps=float(speed.max()) if len(speed) else None,
            )
        )
    rows.sort(key=lambda row: (row.rank, -row.total_ns))
    return Measured(name="copies", rows=tuple(rows))


def copy_bandwidth(timeline: Timeline) -> tuple[BandwidthSeries, ...]:
    """Bandwidth over time for each rank and kind of copy; never negative, and 0 where no copy runs."""
    found = []
    for rank, kind, mine in _by_kind(timeline):
        mine = mine[(timeline.copied_bytes[mine] >= 0) & (timeline.duration_ns[mine] > 0)]
        start, end = timeline.start_ns[mine], timeline.start_ns[mine] + timeline.duration_ns[mine]
        at = np.unique(np.concatenate([start, end]))
        speed = timeline.copied_bytes[mine] / timeline.duration_ns[mine]
        change = np.zeros(len(at))
        np.add.at(change, np.searchsorted(at, start), speed)
        np.subtract.at(change, np.searchsorted(at, end), speed)
        running = np.zeros(len(at), np.int64)
        np.add.at(running, np.searchsorted(at, start), 1)
        np.subtract.at(running, np.searchsorted(at, end), 1)
        # Sums of floats leave a rest where nothing runs.
        gbps = np.where(np.cumsum(running) > 0, np.maximum(np.cumsum(change), 0.0), 0.0)
        found.append(BandwidthSeries(rank=rank, kind=kind, at_ns=at, gbps=gbps))
    return tuple(found)


def _by_kind(timeline: Timeline) -> list[tuple[int, str, NDArray[np.int64]]]:
    rows = np.flatnonzero(np.isin(timeline.category, (Category.MEMCPY, Category.MEMSET)))
    kinds = np.array([_kind(name) for name in timeline.strings] + [""], object)[timeline.name[rows]]
    found: list[tuple[int, str, NDArray[np.int64]]] = []
    for rank in timeline.ranks:
        mine = timeline.rank[rows] == rank
        found += [(rank, str(kind), rows[mine & (kinds == kind)]) for kind in sorted(set(kinds[mine]))]
    return found


def _kind(name: str) -> str:
    found = _KIND.match(name)
    return found[1] if found else name
