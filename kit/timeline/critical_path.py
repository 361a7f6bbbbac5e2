"""The critical path: the chain of work, on host, device and other ranks, that sets how long the window took.

Walked backwards from the last device event. What an event waited for last is its cause:
- its launch call, when that came after the stream was free: the path goes on the host, back to the last call that
  waited for the device (a synchronise or a blocking copy), or to the window's start;
- the event before it on its stream; or, when it began later than 30 us after both, the event of another stream that
  ended last before it (inferred: files do not name the event waited for);
- in a collective matched across ranks whose clocks agree, the rank that came last: the part before its start is
  waiting, and the path goes on in that rank.
After HolisticTraceAnalysis's critical path (launch and kernel-to-kernel edges; its data-dependency edges on the host
are not in Kineto files), carried across ranks. The pieces are disjoint and sum to the window: what is on the path is
what a faster kernel, launch or rank would shorten.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.timeline.attribution import place_names
from kit.timeline.host_time import host_time
from kit.timeline.kernel_kinds import event_kind, short_name
from kit.timeline.kinds import device_rows, rows_named
from kit.timeline.launches import launch_of
from kit.timeline.match import match
from kit.timeline.record import LAUNCH_CATEGORIES, Timeline
from kit.timeline.rows import Measured

QUICK_NS = 30_000  # the usual distance of two kernels, as in idle_causes
_WAITS = ("Synchronize", "cudaMemcpy", "hipMemcpyWithStream", "cuMemcpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece [start_ns, end_ns) of the path on one rank; `row` of the timeline, -1 for host time as a whole.

    `kind`: a kernel's kind, "copy", "set", "host" (preparing and launching), "launch" (from the call to the start on
    the device), "gap" (between dependent events).
    """

    rank: int
    kind: str
    row: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRow:
    """Time on the critical path by kind and what it is; `share` of the whole path. `pieces` counts visits."""

    rank: int
    kind: str
    what: str
    pieces: int
    total_ns: int
    share: float
    where: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rank:
    """One rank's device events in order of end, and what the walk asks of them."""

    start_ns: int
    rows: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    place_of: dict[int, int]
    before: NDArray[np.int64]
    waits_start_ns: NDArray[np.int64]
    waits_end_ns: NDArray[np.int64]


def critical_path(timeline: Timeline, *, rank: int | None = None) -> tuple[Piece, ...]:
    """The pieces of the path in order of time; `rank` walks that rank alone, None goes over all ranks.

    Ranks are crossed only where clocks agree. () for a timeline without device events. Raises `KeyError` for a rank
    that is not there.
    """
    ranks = timeline.ranks if rank is None else (timeline.part(rank).rank,)
    seen = {name: _rank(timeline, name) for name in ranks}
    seen = {name: found for name, found in seen.items() if len(found.rows)}
    if not seen:
        return ()
    partners = _partners(timeline) if rank is None and len(seen) > 1 else {}
    last = max(seen, key=lambda name: int(seen[name].end_ns[-1])) if partners else next(iter(seen))
    return tuple(reversed(_walk(timeline, seen, partners, last)))


def path_table(timeline: Timeline, *, rank: int | None = None) -> Measured[PathRow]:
    """Time on the critical path, most first; the host's is split by whether it is in operators, and of which phase."""
    pieces = critical_path(timeline, rank=rank)
    whole = sum(piece.end_ns - piece.start_ns for piece in pieces)
    places = place_names(timeline)
    totals: dict[tuple[int, str, str, str], list[int]] = {}
    for piece in pieces:
        if piece.kind == "host":
            continue
        what, where = piece.kind, ""
        if piece.row >= 0 and piece.kind not in ("gap", "launch"):
            what = short_name(timeline.strings[timeline.name[piece.row]])
            where = str(places[piece.row])
        entry = totals.setdefault((piece.rank, piece.kind, what, where), [0, 0])
        entry[0] += 1
        entry[1] += piece.end_ns - piece.start_ns
    for name in sorted({piece.rank for piece in pieces}):
        stretches = [(p.start_ns, p.end_ns) for p in pieces if p.rank == name and p.kind == "host"]
        both = np.array(stretches, np.int64).reshape(-1, 2)
        for what, took in host_time(timeline, name, both[:, 0], both[:, 1]).items():
            totals[name, "host", what, ""] = [len(stretches), took]
    rows = [
        PathRow(
            rank=name,
            kind=kind,
            what=what,
            pieces=count,
            total_ns=took,
            share=took / whole if whole else 0.0,
            where=where,
        )
        for (name, kind, what, where), (count, took) in totals.items()
    ]
    return Measured(name="critical path", rows=tuple(sorted(rows, key=lambda row: -row.total_ns)))


def _rank(timeline: Timeline, rank: int) -> _Rank:
    rows = np.arange(len(timeline))[timeline.rows_of(rank)]
    calls = rows[np.isin(timeline.category[rows], LAUNCH_CATEGORIES)]
    blocking = rows_named(
        timeline, (any(w in name for w in _WAITS) and "Async" not in name for name in timeline.strings)
    )
    waits = calls[blocking[calls]]
    waits = waits[np.argsort(timeline.start_ns[waits] + timeline.duration_ns[waits], kind="stable")]
    device = rows[device_rows(timeline)[rows]]
    end = timeline.start_ns[device] + timeline.duration_ns[device]
    order = np.lexsort((timeline.start_ns[device], end))
    device, end = device[order], end[order]
    return _Rank(
        start_ns=int(timeline.start_ns[device].min()) if len(device) else 0,
        rows=device,
        end_ns=end,
        place_of=dict(zip(device.tolist(), range(len(device)), strict=True)),
        before=_before_on_stream(timeline, device, end),
        waits_start_ns=timeline.start_ns[waits],
        waits_end_ns=timeline.start_ns[waits] + timeline.duration_ns[waits],
    )


def _before_on_stream(timeline: Timeline, device: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each event (in order of end) the place of the last one of its stream that ended before it began; -1 none."""
    found = np.full(len(device), -1, np.int64)
    streams = np.stack([timeline.device[device].astype(np.int64), timeline.stream[device]])
    _, stream = np.unique(streams, axis=1, return_inverse=True)
    stream = stream.reshape(-1)
    for number in range(int(stream.max()) + 1 if len(stream) else 0):
        places = np.flatnonzero(stream == number)
        earlier = np.searchsorted(end[places], timeline.start_ns[device[places]], side="right") - 1
        earlier = np.minimum(earlier, np.arange(len(places)) - 1)
        found[places] = np.where(earlier >= 0, places[np.maximum(earlier, 0)], -1)
    return found


def _partners(timeline: Timeline) -> dict[int, tuple[int, int]]:
    """Row of a collective that waited -> rank and row of the member that came last."""
    matching = match(timeline)
    if not matching.clocks_agree:
        return {}
    found = {}
    for collective in matching.collectives:
        last = collective.ranks.index(collective.last_rank)
        for row in collective.rows:
            if row != collective.rows[last]:
                found[row] = (collective.last_rank, collective.rows[last])
    return found


def _walk(timeline: Timeline, seen: dict[int, _Rank], partners: dict[int, tuple[int, int]], rank: int) -> list[Piece]:
    """Pieces from the last to the first."""
    here = seen[rank]
    launch, starts = launch_of(timeline), timeline.start_ns
    names, category, ends = timeline.name, timeline.category, timeline.start_ns + timeline.duration_ns
    kinds: dict[int, str] = {}
    pieces: list[Piece] = []
    place, now = len(here.rows) - 1, int(here.end_ns[-1])
    while place >= 0:
        row = int(here.rows[place])
        key = int(names[row]) * 16 + int(category[row])
        kind = kinds.setdefault(key, event_kind(timeline.strings[names[row]], int(category[row])))
        begin = int(starts[row])
        if row in partners and partners[row][0] in seen and starts[partners[row][1]] < now:
            other, theirs = partners[row]
            came = int(starts[theirs])
            pieces.append(Piece(rank=rank, kind=kind, row=row, start_ns=came, end_ns=now))
            rank, here, now = other, seen[other], came
            begin, row, place = came, theirs, seen[other].place_of[theirs]
        else:
            pieces.append(Piece(rank=rank, kind=kind, row=row, start_ns=min(begin, now), end_ns=now))
        begin = min(begin, now)
        place, now = _cause(here, place, begin, int(launch[row]), (starts, ends), pieces, rank)
    return pieces


def _cause(
    here: _Rank,
    place: int,
    begin: int,
    call: int,
    times: tuple[NDArray[np.int64], NDArray[np.int64]],
    pieces: list[Piece],
    rank: int,
) -> tuple[int, int]:
    """Place and end of the event that the one at `place` waited for, -1 at the start; appends the pieces between."""
    before = int(here.before[place])
    free = int(here.end_ns[before]) if before >= 0 else here.start_ns
    called = int(times[0][call]) if call >= 0 else -1
    if call >= 0 and called > free and (begin - called <= QUICK_NS or not _another(here, place, called, begin)):
        pieces.append(Piece(rank=rank, kind="launch", row=call, start_ns=min(called, begin), end_ns=begin))
        return _on_host(here, place, min(called, begin), pieces, rank)
    chosen = before
    if begin - max(free, called) > QUICK_NS:
        other = _last_ended(here, place, begin)
        chosen = other if other >= 0 and here.end_ns[other] > free else before
    if chosen < 0:
        if begin > here.start_ns:
            pieces.append(Piece(rank=rank, kind="gap", row=-1, start_ns=here.start_ns, end_ns=begin))
        return -1, here.start_ns
    ended = int(here.end_ns[chosen])
    if ended < begin:
        pieces.append(Piece(rank=rank, kind="gap", row=-1, start_ns=ended, end_ns=begin))
    return chosen, min(ended, begin)


def _another(here: _Rank, place: int, called: int, begin: int) -> bool:
    """Whether an event ended after the call and shortly before the begin, so that it was waited for."""
    other = _last_ended(here, place, begin)
    return other >= 0 and int(here.end_ns[other]) > max(called, begin - QUICK_NS)


def _last_ended(here: _Rank, place: int, at: int) -> int:
    return min(int(np.searchsorted(here.end_ns, at, side="right")) - 1, place - 1)


def _on_host(here: _Rank, place: int, at: int, pieces: list[Piece], rank: int) -> tuple[int, int]:
    """Go back on the host from `at` to the last call that waited for a device event, and to that event."""
    wait = int(np.searchsorted(here.waits_end_ns, at, side="right")) - 1
    while wait >= 0:
        ended = int(here.waits_end_ns[wait])
        event = _last_ended(here, place, ended)
        if event < 0 or ended <= here.start_ns:
            break
        done = int(here.end_ns[event])
        if done > int(here.waits_start_ns[wait]):  # the call did wait: this event ended while it was inside
            pieces.append(Piece(rank=rank, kind="host", row=-1, start_ns=min(done, at), end_ns=at))
            return event, min(done, at)
        wait -= 1
    pieces.append(Piece(rank=rank, kind="host", row=-1, start_ns=min(here.start_ns, at), end_ns=at))
    return -1, here.start_ns
