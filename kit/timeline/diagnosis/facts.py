"""What the rules need to know of a timeline, computed once.

The time that a rank does not compute is split into disjoint parts: exposed communication into waiting for another rank
and transfer, idle time by what the device waited for. So what findings claim of one rank adds up to at most its
window.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.timeline.activity import Activity, activity
from kit.timeline.idle_causes import DEPENDENCY, HOST_WAIT, KERNEL_WAIT, OTHER, UNKNOWN, Gaps, gaps
from kit.timeline.intervals import Spans, intersect, length, subtract, union
from kit.timeline.kinds import device_rows, rows_named
from kit.timeline.lateness import Lateness, lateness
from kit.timeline.match import Matching, match
from kit.timeline.record import LAUNCH_CATEGORIES, UNKNOWN_RANK, Category, Timeline
from kit.timeline.steps import Mark, steps

_SYNCHRONISES = ("Synchronize", "cudaMemcpy", "hipMemcpyWithStream")
_SYNC_SLACK_NS = 50_000  # the device may drain a little after the call returned


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankFacts:
    """One rank: unions of its lost time, and the gaps before device events that they come from.

    `waiting` is None when it cannot be told from transfer. `after_sync` and `loading` are the parts of the host's
    idle gaps behind a call that blocks the host, and during a data loader; `late_host` is the rest.
    """

    rank: int
    seen: Activity
    steps: int
    waiting: Spans | None
    transfer: Spans
    gaps: Gaps
    after_sync: Spans
    loading: Spans
    late_host: Spans
    between_kernels: Spans
    unexplained: Spans
    syncs: NDArray[np.int64]

    @property
    def name(self) -> str:
        """`rank 3`, or `a rank unknown`, for sentences."""
        return f"rank {self.rank}" if self.rank != UNKNOWN_RANK else "a rank unknown"

    @property
    def window_ns(self) -> int:
        """Length of the rank's window, at least 1."""
        return max(1, self.seen.end_ns - self.seen.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Facts:
    """A timeline, its ranks with their lost time, and who came late to which collective."""

    timeline: Timeline
    ranks: tuple[RankFacts, ...]
    matching: Matching
    reasons: tuple[Lateness, ...]

    def worst(self, spans: dict[int, int]) -> tuple[RankFacts, int]:
        """The rank with the largest of the given times, and that time."""
        rank = max(spans, key=lambda name: spans[name])
        return next(facts for facts in self.ranks if facts.rank == rank), spans[rank]


def facts_of(timeline: Timeline) -> Facts:
    """All facts; ranks without anything measured are left out."""
    matching = match(timeline)
    comparable = matching.clocks_agree and len(timeline.ranks) > 1
    ranks = [_rank(timeline, rank, matching if comparable else None) for rank in timeline.ranks]
    return Facts(
        timeline=timeline,
        ranks=tuple(facts for facts in ranks if facts.seen.end_ns > facts.seen.start_ns),
        matching=matching,
        reasons=lateness(timeline, matching) if comparable else (),
    )


def _rank(timeline: Timeline, rank: int, matching: Matching | None) -> RankFacts:
    seen = activity(timeline, rank)
    exposed = seen.exposed_communication
    waiting = None if matching is None else intersect(exposed, _waiting(matching, rank))
    rows = np.arange(len(timeline))[timeline.rows_of(rank)]
    device = rows[device_rows(timeline)[rows]]
    found = gaps(timeline, device, np.sort(timeline.start_ns[device] + timeline.duration_ns[device]))
    syncs = _syncs(timeline, rows, seen)
    host = _spans(found, found.cause == HOST_WAIT)
    after_sync = _spans(found, (found.cause == HOST_WAIT) & _follows(timeline, found, syncs))
    loading = intersect(subtract(host, after_sync), _loader(timeline, rows))
    return RankFacts(
        rank=rank,
        seen=seen,
        steps=sum(step.name != Mark.NONE for step in steps(timeline, rank)),
        waiting=waiting,
        transfer=exposed if waiting is None else subtract(exposed, waiting),
        gaps=found,
        after_sync=after_sync,
        loading=loading,
        late_host=subtract(subtract(host, after_sync), loading),
        between_kernels=_spans(found, np.isin(found.cause, (KERNEL_WAIT, DEPENDENCY))),
        unexplained=_spans(found, np.isin(found.cause, (OTHER, UNKNOWN))),
        syncs=syncs,
    )


def _waiting(matching: Matching, rank: int) -> Spans:
    both = [
        (collective.start_ns[collective.ranks.index(rank)], max(collective.start_ns))
        for collective in matching.collectives
        if rank in collective.ranks
    ]
    spans = np.array(both, np.int64).reshape(-1, 2)
    return union(spans[:, 0], spans[:, 1])


def _syncs(timeline: Timeline, rows: NDArray[np.int64], seen: Activity) -> NDArray[np.int64]:
    """Calls that block the host, but those that end after the last device event: the profiler's own are there."""
    named = rows_named(timeline, (any(w in n for w in _SYNCHRONISES) and "Async" not in n for n in timeline.strings))
    calls = rows[named[rows] & np.isin(timeline.category[rows], LAUNCH_CATEGORIES)]
    end = timeline.start_ns[calls] + timeline.duration_ns[calls]
    return calls[(end > seen.start_ns) & (end < seen.end_ns)]


def _follows(timeline: Timeline, found: Gaps, syncs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which gaps begin while a blocking call runs, or just after."""
    if not len(syncs):
        return np.zeros(len(found.row), np.bool_)
    begin = timeline.start_ns[syncs]
    end = begin + timeline.duration_ns[syncs] + _SYNC_SLACK_NS
    place = np.searchsorted(begin, found.start_ns, side="right") - 1
    return (place >= 0) & (found.start_ns < np.maximum.accumulate(end)[np.maximum(place, 0)])


def _loader(timeline: Timeline, rows: NDArray[np.int64]) -> Spans:
    named = rows_named(timeline, ("DataLoader" in name for name in timeline.strings))[rows]
    mine = rows[named & (timeline.category[rows] == Category.ANNOTATION)]
    return union(timeline.start_ns[mine], timeline.start_ns[mine] + timeline.duration_ns[mine])


def _spans(found: Gaps, chosen: NDArray[np.bool_]) -> Spans:
    return union(found.start_ns[chosen], found.end_ns[chosen])


def lost_ns(spans: Spans | None) -> int:
    """Length of a part that may be unknown."""
    return 0 if spans is None else length(spans)
