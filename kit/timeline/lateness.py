"""Why a rank came late to a collective: it computed more, its host fell behind, or it waited for data.

Two ranks that stood together at an earlier collective and apart at this one spent the time between differently. Each
rank's time splits exactly into compute, exposed communication, exposed copies and idle, so the differences of these
parts between the last and the first rank add up to the lateness gained, to the nanosecond. The earlier collective is
the last one at which the late rank was less than a fifth as late, at most 64 back; before the first, the earlier of the
two ranks' first events. A rank that has not begun yet stands idle.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from kit.timeline.activity import Activity, activity
from kit.timeline.intervals import Spans, covered, union
from kit.timeline.kinds import rows_named
from kit.timeline.match import Collective, Matching
from kit.timeline.phases import Phase, phase_of
from kit.timeline.record import Category, Timeline

TOGETHER_SHARE = 0.2
MOST_BACK = 64
# Below this nothing is worth a reason: ends of one collective differ by up to 28 us (facts: 2 x H200).
LEAST_LATE_NS = 30_000
WORDS = {
    "compute": "it computed longer",
    "host": "its device stood idle: the host launched late",
    "data": "it waited for data: a loader or copies to the device",
    "communication": "it was longer in other collectives",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """How late the last rank was against the first, and the differences that explain it, in nanoseconds.

    `compute_ns`, `communication_ns`, `copy_ns` and `idle_ns` are late rank minus first rank since `since_ns`; they sum
    to `gained_ns`. `data_ns` is the part of the late rank's idle time in which its host loaded data. `cause` is the
    largest of them: "compute", "host", "data" or "communication"; "" when nobody was late.
    """

    late_rank: int
    first_rank: int
    late_ns: int
    gained_ns: int
    since_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    idle_ns: int
    data_ns: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    seen: Activity
    parts: tuple[Spans, ...]
    loading: Spans


def lateness(timeline: Timeline, matching: Matching) -> tuple[Lateness, ...]:
    """For each matched collective, in the order of `matching`, who was late and why."""

    @cache
    def of_rank(rank: int) -> _Rank:
        seen = activity(timeline, rank)
        parts = (seen.compute, seen.exposed_communication, seen.exposed_copy)
        return _Rank(seen=seen, parts=parts, loading=_loading(timeline, rank))

    found = []
    for number, collective in enumerate(matching.collectives):
        starts = dict(zip(collective.ranks, collective.start_ns, strict=True))
        late, first = collective.last_rank, min(starts, key=lambda rank: starts[rank])
        if starts[late] - starts[first] < LEAST_LATE_NS:
            found.append(_nobody(late, first, starts[late] - starts[first]))
            continue
        since = _together(matching.collectives, number, late, first)
        if since is None:
            begin = min(of_rank(late).seen.start_ns, of_rank(first).seen.start_ns)
            since = (begin, begin)
        found.append(_explained(of_rank(late), of_rank(first), since, (starts[late], starts[first])))
    return tuple(found)


def _together(collectives: tuple[Collective, ...], number: int, late: int, first: int) -> tuple[int, int] | None:
    """Starts of both ranks at the last collective at which they stood together."""
    now = collectives[number]
    apart = now.start_ns[now.ranks.index(late)] - now.start_ns[now.ranks.index(first)]
    for before in reversed(collectives[max(0, number - MOST_BACK) : number]):
        if late in before.ranks and first in before.ranks:
            ends = before.start_ns[before.ranks.index(late)], before.start_ns[before.ranks.index(first)]
            if abs(ends[0] - ends[1]) < TOGETHER_SHARE * apart:
                return ends
    return None


def _explained(late: _Rank, first: _Rank, since: tuple[int, int], until: tuple[int, int]) -> Lateness:
    of_late = [_within(part, since[0], until[0]) for part in late.parts]
    of_first = [_within(part, since[1], until[1]) for part in first.parts]
    compute, communication, copy = (a - b for a, b in zip(of_late, of_first, strict=True))
    gained = (until[0] - since[0]) - (until[1] - since[1])
    idle = gained - compute - communication - copy
    data = _within(late.loading, since[0], until[0]) - _within(first.loading, since[1], until[1])
    data = max(0, min(data, idle)) + max(0, copy)
    sizes = {
        "compute": compute,
        "communication": communication,
        "data": data,
        "host": idle - max(0, data - max(0, copy)),
    }
    return Lateness(
        late_rank=late.seen.rank,
        first_rank=first.seen.rank,
        late_ns=until[0] - until[1],
        gained_ns=gained,
        since_ns=since[0],
        compute_ns=compute,
        communication_ns=communication,
        copy_ns=copy,
        idle_ns=idle,
        data_ns=data,
        cause=max(sizes, key=lambda cause: sizes[cause]),
    )


def _within(spans: Spans, start: int, end: int) -> int:
    return int(covered(spans, np.array([start], np.int64), np.array([end], np.int64))[0])


def _loading(timeline: Timeline, rank: int) -> Spans:
    """When the host of a rank loads data, or blocks in a copy to the device."""
    rows: NDArray[np.int64] = np.arange(len(timeline))[timeline.rows_of(rank)]
    loads = (phase_of(timeline)[rows] == Phase.DATA) & (timeline.category[rows] == Category.ANNOTATION)
    loads |= rows_named(timeline, ("DataLoader" in name and "__next__" in name for name in timeline.strings))[rows]
    start = timeline.start_ns[rows[loads]]
    return union(start, start + timeline.duration_ns[rows[loads]])


def _nobody(late: int, first: int, late_ns: int) -> Lateness:
    return Lateness(
        late_rank=late, first_rank=first, late_ns=late_ns, gained_ns=0, since_ns=0, compute_ns=0, communication_ns=0,
        copy_ns=0, idle_ns=0, data_ns=0, cause="",
    )  # fmt: skip
