"""Match collectives across ranks, and say who waited for whom.

No trace carries sequence numbers (pytorch/kineto#1294), and ids differ between ranks, so the k-th collective of each
(process group, collective) in order of start is taken for the same one on all members. That holds as long as every
rank issues the same collectives of a group in the same order, which collectives require anyway.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.timeline.kinds import communication_kernels, is_collective_work, rows_named
from kit.timeline.record import UNKNOWN_RANK, Category, Timeline

# Ends of a matched collective agree within 28 us on one clock (measured: 2 x H200; 7 us on 8 x V100).
CLOCK_TOLERANCE_NS = 1_000_000
# Others (gather, scatter, all-to-all, uneven all-gather) may send other sizes from each rank.
_SAME_SIZE = ("allreduce", "_allgather_base", "_reduce_scatter_base", "allreduce_coalesced")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What is matched: `group` is the process group's name ("" when the trace lacks it), `name` the collective's."""

    group: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} of group {self.group}" if self.group else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective on the ranks that took part, the `order`-th (from 0) of its key.

    `rows` are rows of the timeline, `start_ns` and `end_ns` the span of each rank. `complete` is False when a member's
    trace is not there, which makes waiting a lower bound. `elements_in` is -1 when unknown.
    """

    key: Key
    order: int
    ranks: tuple[int, ...]
    rows: tuple[int, ...]
    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    elements_in: int
    complete: bool

    @property
    def waiting_ns(self) -> tuple[int, ...]:
        """How long each rank waited: the latest start over the ranks - its own start."""
        latest = max(self.start_ns)
        return tuple(latest - start for start in self.start_ns)

    @property
    def transfer_ns(self) -> int:
        """Earliest end - latest start; negative when the clocks differ or the match is wrong."""
        return min(self.end_ns) - max(self.start_ns)

    @property
    def last_rank(self) -> int:
        """The rank that came last, for which the others waited."""
        return self.ranks[self.start_ns.index(max(self.start_ns))]

    @property
    def end_spread_ns(self) -> int:
        """Latest - earliest end: a check of the clocks."""
        return max(self.end_ns) - min(self.end_ns)

    @property
    def is_plausible(self) -> bool:
        """Whether the times can be of one collective on one clock.

        Ends on devices must agree; threads of a host may be held up after the end for as long as the host is busy.
        """
        ends_agree = is_collective_work(self.key.name) or self.end_spread_ns <= CLOCK_TOLERANCE_NS
        return self.transfer_ns >= 0 and ends_agree


@dataclass(frozen=True, slots=True, kw_only=True)
class Incomplete:
    """A group some of whose members have no trace here."""

    group: str
    members: tuple[int, ...]
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Uneven:
    """A key that the ranks ran a different number of times, or with other sizes; not matched."""

    key: Key
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """Collectives matched across ranks, in order of their first start."""

    collectives: tuple[Collective, ...]
    incomplete: tuple[Incomplete, ...]
    uneven: tuple[Uneven, ...]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        late = "none" if self.straggler is None else f"rank {self.straggler}"
        return (
            f"Matching({len(self.collectives)} collectives, {len(self.incomplete)} groups incomplete, "
            f"{len(self.uneven)} uneven, straggler {late})"
        )

    @property
    def clocks_agree(self) -> bool:
        """Whether all transfers are positive and ends agree, so that times of ranks may be compared."""
        return all(collective.is_plausible for collective in self.collectives)

    @property
    def waiting_ns(self) -> dict[int, int]:
        """Summed waiting of each rank, in nanoseconds; meaningless when the clocks do not agree."""
        total: dict[int, int] = defaultdict(int)
        for collective in self.collectives:
            for rank, waited in zip(collective.ranks, collective.waiting_ns, strict=True):
                total[rank] += waited
        return dict(sorted(total.items()))

    @property
    def transfer_ns(self) -> int:
        """Summed transfer, in nanoseconds."""
        return sum(collective.transfer_ns for collective in self.collectives)

    @property
    def straggler(self) -> int | None:
        """The rank that waited least, so that others waited for it; None when nothing shows one."""
        waiting = self.waiting_ns
        if len(waiting) < 2 or not self.clocks_agree or len(set(waiting.values())) == 1:
            return None
        return min(waiting, key=lambda rank: waiting[rank])


def match(timeline: Timeline) -> Matching:
    """Match the collectives of all ranks in a timeline.

    Groups with absent members are named in `incomplete`; what at least two loaded members ran is matched all the same.
    Keys that the ranks ran unevenly are named and left out. On CPU-only ranks the backend's work spans are matched.
    """
    rows_by_key = _rows_by_key(timeline)
    collectives: list[Collective] = []
    incomplete: dict[str, Incomplete] = {}
    uneven: list[Uneven] = []
    for (key, members), rows_of in rows_by_key.items():
        expected = members or tuple(rank for rank in timeline.ranks if rank != UNKNOWN_RANK)
        missing = tuple(rank for rank in expected if rank not in timeline.ranks)
        if missing:
            incomplete[key.group] = Incomplete(group=key.group, members=expected, missing=missing)
        here = [rank for rank in expected if rank in timeline.ranks]
        if len(here) < 2:
            continue
        counts = {rank: len(rows_of.get(rank, ())) for rank in here}
        if len(set(counts.values())) > 1:
            uneven.append(Uneven(key=key, why=f"run a different number of times by rank: {counts}"))
            continue
        found = list(_collectives(timeline, key, {rank: rows_of[rank] for rank in here}, complete=not missing))
        wrong = _size_mismatch(timeline, found)
        if wrong:
            uneven.append(Uneven(key=key, why=wrong))
        else:
            collectives += found
    collectives.sort(key=lambda c: min(c.start_ns))
    gaps = tuple(incomplete[group] for group in sorted(incomplete))
    return Matching(
        collectives=tuple(collectives), incomplete=gaps, uneven=tuple(uneven), notes=_notes(collectives, gaps, uneven)
    )


def _rows_by_key(timeline: Timeline) -> dict[tuple[Key, tuple[int, ...]], dict[int, NDArray[np.int64]]]:
    """Rows of each rank for each key and its group's members, in order of start."""
    names, groups = timeline.strings, timeline.groups
    host_rank = np.array([part.rank for part in timeline.parts if part.cpu_only], np.int32)
    work = np.isin(timeline.rank, host_rank) & (timeline.category == Category.ANNOTATION)
    work &= rows_named(timeline, map(is_collective_work, names))
    found: dict[tuple[Key, tuple[int, ...]], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in np.flatnonzero(communication_kernels(timeline) | work).tolist():
        group, collective = int(timeline.group[row]), int(timeline.collective[row])
        name = names[collective] if collective >= 0 else names[timeline.name[row]].split("(")[0]
        key = Key(group=groups[group].name if group >= 0 else "", name=name)
        found[key, groups[group].ranks if group >= 0 else ()][int(timeline.rank[row])].append(row)
    return {key: {rank: np.array(rows, np.int64) for rank, rows in by_rank.items()} for key, by_rank in found.items()}


def _collectives(
    timeline: Timeline, key: Key, rows_of: dict[int, NDArray[np.int64]], *, complete: bool
) -> Iterator[Collective]:
    ranks = tuple(sorted(rows_of))
    rows = _untangled(timeline, np.stack([rows_of[rank] for rank in ranks], axis=1))
    start, end = timeline.start_ns[rows], _end_ns(timeline, rows)
    for order in range(len(rows)):
        yield Collective(
            key=key,
            order=order,
            ranks=ranks,
            rows=tuple(rows[order].tolist()),
            start_ns=tuple(start[order].tolist()),
            end_ns=tuple(end[order].tolist()),
            elements_in=int(timeline.elements_in[rows[order]].max()),
            complete=complete,
        )


def _untangled(timeline: Timeline, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows [order, rank] with two neighbours of one rank exchanged where only that makes both transfers possible.

    A CPU backend runs collectives on several threads: two that were issued in order may start the other way round.
    """
    rows = rows.copy()
    for order in range(len(rows) - 1):
        pair = rows[order : order + 2]
        if _least_transfer(timeline, pair) >= 0:
            continue
        for column in range(rows.shape[1]):
            swapped = pair.copy()
            swapped[:, column] = pair[::-1, column]
            together = timeline.start_ns[pair[1, column]] < _end_ns(timeline, pair[0, column])
            if together and _least_transfer(timeline, swapped) >= 0:
                rows[order : order + 2] = swapped
                break
    return rows


def _least_transfer(timeline: Timeline, rows: NDArray[np.int64]) -> int:
    return int((_end_ns(timeline, rows).min(axis=1) - timeline.start_ns[rows].max(axis=1)).min())


def _end_ns(timeline: Timeline, rows: Any) -> Any:
    return timeline.start_ns[rows] + timeline.duration_ns[rows]


def _size_mismatch(timeline: Timeline, collectives: list[Collective]) -> str:
    """Why collectives of one key cannot be the same on all ranks, "" when nothing speaks against it."""
    for collective in collectives:
        rows = list(collective.rows)
        dtypes = {timeline.strings[i] if i >= 0 else "" for i in timeline.dtype[rows].tolist()}
        sizes = dict(zip(collective.ranks, timeline.elements_in[rows].tolist(), strict=True))
        if len(dtypes) > 1:
            return f"the {collective.order}-th has other dtypes by rank: {', '.join(sorted(dtypes))}"
        if len(set(sizes.values())) > 1 and collective.key.name in _SAME_SIZE:
            return f"the {collective.order}-th has other sizes by rank: {sizes} elements"
    return ""


def _notes(collectives: list[Collective], incomplete: tuple[Incomplete, ...], uneven: list[Uneven]) -> tuple[str, ...]:
    notes = [
        f"group {gap.group or '(unnamed)'} of ranks {list(gap.members)} is incomplete: no trace of {list(gap.missing)}"
        for gap in incomplete
    ]
    notes += [f"{entry.key} is not matched: {entry.why}" for entry in uneven]
    doubtful = [collective for collective in collectives if not collective.is_plausible]
    if doubtful:
        worst = min(collective.transfer_ns for collective in doubtful)
        spread = max(collective.end_spread_ns for collective in doubtful)
        notes.append(
            f"times of the ranks do not compare: a transfer of {worst / 1e6:.3f} ms and ends {spread / 1e6:.3f} ms "
            "apart, expected at least 0 and at most 1 ms. The clocks differ, or the profiles began at different steps; "
            "no straggler is named"
        )
    return tuple(notes)
