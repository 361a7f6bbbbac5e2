"""The rows that a timeline view draws, as plain columns: which boxes stand in which row, of which kind.

The browser gets each event once, row after row, sorted by start and never overlapping within a row, so that it can find
what is visible by binary search. Nothing is measured here: kinds and unions are those of `kit.timeline.activity`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kit import colours
from kit.step.record import Plan
from kit.timeline.activity import Activity, activity
from kit.timeline.intervals import Spans, covered
from kit.timeline.kinds import (
    communication_kernels,
    device_rows,
    is_collective_call,
    is_collective_work,
    is_compiled_call,
    rows_named,
)
from kit.timeline.match import match
from kit.timeline.memory_counters import allocators
from kit.timeline.record import LAUNCH_CATEGORIES, UNKNOWN_RANK, Category, Timeline
from kit.timeline.steps import steps

MOST_STREAM_LEVELS, MOST_HOST_LEVELS = 4, 12
_SAME_NS = 1000  # files round: neighbours of one stream may overlap by less than this


class Kind(IntEnum):
    """What a box is; the numbers are those of `LOOKS` and of the drawing code."""

    COMPUTE = 0
    EXPOSED = 1
    HIDDEN = 2
    COPY = 3
    IDLE = 4
    OPERATOR = 5
    LAUNCH = 6
    RANGE = 7
    FORWARD = 8
    BACKWARD = 9
    OPTIMIZER = 10


# Word, colour, pattern: a second cue stands beside each colour, or the row itself is one (host rows have own rows).
LOOKS: tuple[tuple[str, str, str], ...] = (
    ("compute", colours.COMPUTE, "solid"),
    ("communication, exposed", colours.EXPOSED, "thick"),
    ("communication, hidden", colours.HIDDEN, "thin"),
    ("copy", colours.COPY, "dots"),
    ("idle", colours.IDLE, "empty"),
    ("operator", colours.OPERATOR_OF_HOST, "solid"),
    ("launch call", colours.LAUNCH, "dots"),
    ("range", colours.RANGE, "solid"),
    ("F: forward", colours.FORWARD, "solid"),
    ("B: backward", colours.BACKWARD, "solid"),
    ("O: optimizer", colours.OPTIMIZER, "solid"),
)
_PHASES = {"forward": Kind.FORWARD, "backward": Kind.BACKWARD, "optimizer": Kind.OPTIMIZER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A row of the view: `count` events from `first` on. `role`: summary, stream, host, plan or memory."""

    label: str
    rank: int
    role: str
    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lanes:
    """All rows of a timeline as columns; times in nanoseconds after `zero_ns`, the first thing that any rank did.

    `row` is the event's row of the timeline, -1 for what is no event (unions of a rank, a plan). `joined`,
    `[joins, 2]`: events of one collective on two neighbouring ranks, in order of their earlier start. `memory_at` and
    `memory_bytes` are the columns of tracks whose role is memory. `unseen`: events nested too deep to be drawn.
    """

    zero_ns: int
    first_ns: float
    last_ns: float
    tracks: tuple[Track, ...]
    names: tuple[str, ...]
    start: NDArray[np.float64]
    duration: NDArray[np.float32]
    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    row: NDArray[np.int32]
    joined: NDArray[np.int32]
    memory_at: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]
    unseen: int


class _Box(NamedTuple):
    """A stretch of a plan, in seconds after the step's begin."""

    start: float
    end: float
    kind: Kind
    name: str


class _Rows:
    """Collects tracks and their columns."""

    def __init__(self, zero_ns: int, names: Sequence[str]) -> None:
        self.zero_ns = zero_ns
        self.tracks: list[Track] = []
        self.names = list(names)
        self._ids = {name: place for place, name in enumerate(self.names)}
        self._parts: list[tuple[NDArray[Any], ...]] = []
        self._count = 0

    def id_of(self, name: str) -> int:
        """The number of a name, which is added when it is new."""
        if name not in self._ids:
            self._ids[name] = len(self.names)
            self.names.append(name)
        return self._ids[name]

    def add(self, label: str, rank: int, role: str, *columns: NDArray[Any]) -> None:
        """A track of `start`, `end` (absolute ns), `kind`, `name`, `row`."""
        start, end, *others = columns
        order = np.argsort(start, kind="stable")
        shown = (start - self.zero_ns).astype(np.float64), (end - start).astype(np.float32), *others
        self._parts.append(tuple(column[order] for column in shown))
        self.tracks.append(Track(label=label, rank=rank, role=role, first=self._count, count=len(start)))
        self._count += len(start)

    def columns(self) -> tuple[NDArray[Any], ...]:
        """All tracks one after the other."""
        types = (np.float64, np.float32, np.uint8, np.int32, np.int32)
        if not self._parts:
            return tuple(np.empty(0, kind) for kind in types)
        joined = (np.concatenate(parts) for parts in zip(*self._parts, strict=True))
        return tuple(column.astype(kind) for column, kind in zip(joined, types, strict=True))


def lanes_of(timeline: Timeline, *, plan: Plan | None = None) -> Lanes:
    """The rows of a timeline: a plan's beside each step of the first rank, then rank by rank what it did, its streams,
    its host threads and its memory.
    """
    seen = [activity(timeline, rank) for rank in timeline.ranks]
    starts = [a.start_ns for a in seen if a.end_ns > a.start_ns]
    zero_ns = min(starts, default=int(timeline.start_ns.min()) if len(timeline) else 0)
    rows = _Rows(zero_ns, timeline.strings)
    kinds = _kinds(timeline, seen)
    if plan is not None and plan.estimate is not None:
        _add_plan(rows, timeline, plan)
    memory = allocators(timeline)
    unseen, at, sizes = 0, [np.empty(0)], [np.empty(0)]
    for did in seen:
        _add_summary(rows, did)
        unseen += _add_events(rows, timeline, did.rank, kinds)
        for used in (allocator for allocator in memory if allocator.rank == did.rank):
            label, first, count = f"memory, {used.device}", sum(map(len, at)), len(used.rows)
            rows.tracks.append(Track(label=label, rank=did.rank, role="memory", first=first, count=count))
            at.append((timeline.memory_at_ns[used.rows] - zero_ns).astype(np.float64))
            sizes.append(timeline.memory_allocated_bytes[used.rows].astype(np.float64))
    start, duration, kind, name, row = rows.columns()
    return Lanes(
        zero_ns=zero_ns,
        first_ns=float(start.min()) if len(start) else 0.0,
        last_ns=float((start + duration).max()) if len(start) else 1.0,
        tracks=tuple(rows.tracks), names=tuple(rows.names),
        start=start, duration=duration, kind=kind, name=name, row=row,
        joined=_joins(timeline, start, row), unseen=unseen,
        memory_at=np.concatenate(at), memory_bytes=np.concatenate(sizes),
    )  # fmt: skip


def _kinds(timeline: Timeline, seen: Sequence[Activity]) -> NDArray[np.uint8]:
    """The kind of each row."""
    names, category = timeline.strings, timeline.category
    kinds = np.full(len(timeline), Kind.RANGE, np.uint8)
    kinds[category == Category.CPU_OP] = Kind.OPERATOR
    kinds[np.isin(category, LAUNCH_CATEGORIES)] = Kind.LAUNCH
    device = device_rows(timeline)
    kinds[device] = Kind.COMPUTE
    kinds[np.isin(category, (Category.MEMCPY, Category.MEMSET))] = Kind.COPY
    talk = communication_kernels(timeline)
    calls = rows_named(timeline, (is_collective_call(name) or is_collective_work(name) for name in names))
    compiled = rows_named(timeline, map(is_compiled_call, names))
    for did in seen:
        mine = timeline.rows_of(did.rank)
        if timeline.part(did.rank).cpu_only:  # threads of the host are the device
            host = np.isin(category[mine], (Category.CPU_OP, Category.ANNOTATION))
            kinds[mine][host & (compiled[mine] | (category[mine] == Category.CPU_OP))] = Kind.COMPUTE
            talk[mine] |= host & calls[mine]
        rows = np.flatnonzero(talk[mine]) + mine.start
        start, took = timeline.start_ns[rows], timeline.duration_ns[rows]
        exposed = covered(did.exposed_communication, start, start + took)
        kinds[rows] = np.where(2 * exposed >= took, Kind.EXPOSED, Kind.HIDDEN)
    return kinds


def _rank_name(rank: int) -> str:
    return "rank ?" if rank == UNKNOWN_RANK else f"rank {rank}"


def _add_summary(rows: _Rows, did: Activity) -> None:
    """What the rank did, in one row without gap: the four parts add up to its window."""
    parts: tuple[tuple[Kind, Spans], ...] = (
        (Kind.COMPUTE, did.compute),
        (Kind.EXPOSED, did.exposed_communication),
        (Kind.COPY, did.exposed_copy),
        (Kind.IDLE, did.idle),
    )
    start, end = (np.concatenate([spans[side] for _, spans in parts]) for side in (0, 1))
    kind = np.repeat([k for k, _ in parts], [len(spans[0]) for _, spans in parts])
    name = np.repeat([rows.id_of(LOOKS[k][0]) for k, _ in parts], [len(spans[0]) for _, spans in parts])
    rows.add(_rank_name(did.rank), did.rank, "summary", start, end, kind, name, np.full(len(start), -1))


def _add_events(rows: _Rows, timeline: Timeline, rank: int, kinds: NDArray[np.uint8]) -> int:
    """The streams and threads of a rank, nested ones one below the other; how many lie too deep."""
    mine = timeline.rows_of(rank)
    device = device_rows(timeline)[mine]
    # The device's echo of a host range lasts as long as its kernels and would only hide them.
    host = ~device & (timeline.category[mine] != Category.GPU_ANNOTATION)
    unseen = 0
    for label, role, ids in (*_streams(timeline, mine, device, kinds), *_threads(timeline, mine, host)):
        deep = MOST_STREAM_LEVELS if role == "stream" else MOST_HOST_LEVELS
        same = _SAME_NS if role == "stream" else 0
        start = timeline.start_ns[ids]
        end = start + timeline.duration_ns[ids]
        left = np.arange(len(ids))
        for level in range(deep):
            if not len(left):
                break
            under = np.zeros(len(left), bool)
            under[1:] = start[left[1:]] + same < np.maximum.accumulate(end[left])[:-1]
            top = left[~under]
            shown = ids[top]
            text = label if level == 0 else "overlapping" if role == "stream" else ""
            rows.add(text, rank, role, start[top], end[top], kinds[shown], timeline.name[shown], shown)
            left = left[under]
        unseen += len(left)
    return unseen


def _streams(
    timeline: Timeline, mine: slice, device: NDArray[np.bool_], kinds: NDArray[np.uint8]
) -> Iterator[tuple[str, str, NDArray[np.int64]]]:
    rows = np.flatnonzero(device) + mine.start
    keys = np.stack([timeline.device[rows].astype(np.int64), timeline.stream[rows]], axis=1)
    found, place = np.unique(keys, axis=0, return_inverse=True)
    several = len(np.unique(found[:, 0])) > 1 if len(found) else False
    for number, (card, stream) in enumerate(found.tolist()):
        ids = rows[place.reshape(-1) == number]
        talks = np.isin(kinds[ids], (Kind.EXPOSED, Kind.HIDDEN)).mean() > 0.5
        where = f"device {card}, " if several else ""
        yield f"{where}stream {stream}{': communication' if talks else ''}", "stream", ids


def _threads(timeline: Timeline, mine: slice, host: NDArray[np.bool_]) -> Iterator[tuple[str, str, NDArray[np.int64]]]:
    """What each thread did, then its Python frames: those nest dozens deep and would push the operators out of sight.

    Frames around everything else that the rank did (of whoever called the profiler, of threads that wait) say nothing.
    """
    rows = np.flatnonzero(host) + mine.start
    lanes, is_frame = timeline.lane[rows], timeline.category[rows] == Category.PYTHON
    start, end = timeline.start_ns[rows], timeline.start_ns[rows] + timeline.duration_ns[rows]
    others = ~is_frame
    if others.any():
        around = is_frame & (start <= start[others].min()) & (end >= end[others].max())
        is_frame &= ~around
    for lane in np.unique(lanes).tolist():
        tid = timeline.lanes[lane].tid
        for label, chosen in ((f"thread {tid}", others), (f"thread {tid}: Python", is_frame)):
            if len(ids := rows[chosen & (lanes == lane)]):
                yield label, "host", ids


def _add_plan(rows: _Rows, timeline: Timeline, plan: Plan) -> None:
    """The estimated lanes, begun anew at each step of the first rank."""
    guess = plan.estimate
    if guess is None or not timeline.ranks:
        return
    begins = np.array([step.start_ns for step in steps(timeline, timeline.ranks[0])], np.int64)
    blocks = [
        _Box(block.start, block.end, _PHASES.get(block.phase, Kind.IDLE), f"{block.phase} (planned)")
        for block in guess.compute
    ]
    spans = [
        _Box(s.start, s.end, Kind.EXPOSED if 2 * s.exposed >= s.end - s.start else Kind.HIDDEN, s.name)
        for s in guess.spans
    ]
    for label, boxes in (("plan: compute", blocks), ("plan: communication", spans)):
        if not boxes:
            continue
        count = len(begins)
        start, end = (
            (begins[:, None] + np.array([round(seconds * 1e9) for seconds in edge], np.int64)).ravel()
            for edge in ([box.start for box in boxes], [box.end for box in boxes])
        )
        kind = np.tile([int(box.kind) for box in boxes], count)
        name = np.tile([rows.id_of(box.name) for box in boxes], count)
        rows.add(label, UNKNOWN_RANK, "plan", start, end, kind, name, np.full(len(start), -1))


def _joins(timeline: Timeline, start: NDArray[np.float64], row: NDArray[np.int32]) -> NDArray[np.int32]:
    """Pairs of events that are one collective on neighbouring ranks."""
    place = np.full(len(timeline) + 1, -1, np.int32)
    place[row] = np.arange(len(row))  # row -1 lands in the last place, which no event has
    pairs = [
        (place[one], place[other])
        for collective in match(timeline).collectives
        for one, other in zip(collective.rows, collective.rows[1:], strict=False)
    ]
    found = np.array(pairs, np.int32).reshape(-1, 2)
    found = found[(found >= 0).all(axis=1)]
    return found[np.argsort(np.minimum(start[found[:, 0]], start[found[:, 1]]), kind="stable")]
