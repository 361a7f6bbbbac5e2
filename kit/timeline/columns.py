"""Turn the decoded events of one rank into the columns of a Timeline.

Events come in one batch or in many (a file read in pieces); the columns are the same either way, which is why every
table of ids is filled in order of first use over the whole file, and why only `finish` sorts.
"""

import re
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.timeline.error import TraceError
from kit.timeline.exact import (
    EXACT_BELOW_NS,
    MOST_NS,
    NO_TIME,
    as_int,
    integers,
    integers_of_ints,
    nanoseconds,
    require_exact,
)
from kit.timeline.fields import IS_DEVICE, WHOLE_PROFILE_CODE, Ids, Numbers, Tables
from kit.timeline.kineto import NO_ARGS, Decoded, Header, Mended
from kit.timeline.record import COLUMNS, UNKNOWN_RANK, Lane, Part, Timeline
from kit.timeline.store import Store
from kit.timeline.typed_events import TypedSpan

RANK_IN_NAME = re.compile(r"(?:rank|worker)[_\-]?(\d{1,6})(?!\d)", re.IGNORECASE)
_NARROW = {"category": np.uint8, **dict.fromkeys(("name", "lane", "device", "group", "collective", "dtype"), np.int32)}
_KINDS = {name: _NARROW.get(name, np.int64) for name in COLUMNS if name != "rank"}


CPU_ONLY = (
    "CPU-only: no event of a device, so the threads of the host count as the device. "
    "Profile with ProfilerActivity.CUDA to see a GPU"
)


class OutOfRangeError(Exception):
    """The file's own zero came after its events and moves some of them out of range: read it whole."""


class Filler:
    """Collects the columns of one file, batch by batch.

    `guards_floats`: raise `AbsoluteTimeError` when a batch brings a time that a float cannot hold to the nanosecond.
    """

    def __init__(self, path: Path, *, base_ns: int = 0, strict: bool = True, guards_floats: bool = False) -> None:
        self._path, self._base_ns, self._strict, self._guards_floats = path, base_ns, strict, guards_floats
        self._tables = Tables()
        self._store = Store(_KINDS)
        self._spans = self._unusable = 0

    def add(self, events: Sequence[Any]) -> None:
        """Add events (`kineto.Event`, of any spelling); those that are no spans are left out.

        Raises `TraceError` for a span without usable times; without `strict` it is dropped and counted.
        """
        spans = [event for event in events if event.ph == "X"]
        for event in spans:
            event.args = event.args or NO_ARGS
        self._fill(spans, integers)

    def add_typed(self, events: Sequence[Any]) -> None:
        """Add events whose numbers are known to be ints (`typed_events`)."""
        self._fill([event for event in events if type(event) is TypedSpan], integers_of_ints)

    def _fill(self, spans: list[Any], numbers: Numbers) -> None:
        category = self._tables.categories(spans)
        good = category != WHOLE_PROFILE_CODE
        if not good.all():
            category, spans = category[good], list(compress(spans, good.tolist()))
        start, duration, good = self._times(spans)
        if not good.all():
            start, duration, category = start[good], duration[good], category[good]
            spans = list(compress(spans, good.tolist()))
        if not spans:
            return
        columns = self._tables.columns(spans, category, numbers)
        self._store.append({"start_ns": start, "duration_ns": duration, **columns}, len(spans))

    def finish(self, header: Header, mended: Mended, *, rank: int | None = None) -> Timeline:
        """The Timeline of the file. `rank` overrides what the file says.

        Raises `OutOfRangeError` when the header's zero is not the one given at the start and does not fit.
        """
        notes: list[str] = []
        store, count = self._store, len(self._store)
        base_ns = as_int(header.base_ns, 0)
        if base_ns != self._base_ns:
            _shift(store.column("start_ns"), base_ns - self._base_ns)
        rank = _rank_of(header, self._path, notes) if rank is None else rank
        strings = Ids(self._tables.names)
        for name, ids in (("collective", self._tables.collectives), ("dtype", self._tables.dtypes)):
            moved = np.append(strings.of(ids), -1).astype(np.int32)
            store.column(name)[:] = moved[store.column(name)]
        cpu_only = not bool(IS_DEVICE[store.column("category")].any())
        dropped = mended.dropped + self._unusable
        part = _part(header, rank, self._path, base_ns=base_ns, cpu_only=cpu_only, dropped=dropped, mended=mended.count)
        _say(notes, mended, part, unusable=self._unusable, is_empty=not count)
        order = _order(store.column("start_ns"), store.column("duration_ns"))
        return Timeline(
            parts=(part,),
            strings=tuple(strings),
            lanes=tuple(Lane(rank=rank, pid=pid, tid=tid) for pid, tid in self._tables.lanes.texts),
            groups=tuple(self._tables.groups),
            notes=tuple(notes),
            rank=np.full(count, rank, np.int32),
            **store.columns_sorted(order),
        )

    def _times(self, spans: list[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Start and duration in exact nanoseconds, and which of them are usable."""
        ts = [span.ts for span in spans]
        start, duration = nanoseconds(ts), nanoseconds([span.dur for span in spans])
        if self._guards_floats and np.any(np.abs(start) >= EXACT_BELOW_NS):
            require_exact(ts)
        good = (start > NO_TIME) & (duration >= 0) & (np.abs(start + self._base_ns) < MOST_NS)
        first, self._spans = self._spans, self._spans + len(spans)
        if not good.all():
            wrong = np.flatnonzero(~good).tolist()
            # A negative duration marks a span that never ended: torch writes it, so it is no fault of the file.
            fatal = [i for i in wrong if not (start[i] > NO_TIME and NO_TIME < duration[i] < 0)]
            if self._strict and fatal:
                span = spans[fatal[0]]
                raise TraceError(
                    f"{self._path}: span {first + fatal[0]} ({span.name[:60]!r}) has ts {span.ts} and dur {span.dur}; "
                    "expected finite microseconds within 146 years. strict=False reads the others"
                )
            self._unusable += len(wrong)
        return start + self._base_ns, duration, good


def timeline_of(decoded: Decoded, path: Path, *, rank: int | None = None, strict: bool = True) -> Timeline:
    """The Timeline of one decoded file. `rank` overrides what the file says.

    Raises `TraceError` for a span without usable times; `strict=False` drops and counts it.
    """
    filler = Filler(path, base_ns=as_int(decoded.header.base_ns, 0), strict=strict)
    filler.add(decoded.events)
    return filler.finish(decoded.header, decoded.mended, rank=rank)


def _order(start_ns: NDArray[np.int64], duration_ns: NDArray[np.int64]) -> NDArray[np.intp]:
    """Rows by start, the longer first, else as they came: few share a start, so durations are compared for those."""
    order = np.argsort(start_ns, kind="stable")
    same = np.diff(start_ns[order]) == 0
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    rows = order[tied]
    order[tied] = rows[np.lexsort((-duration_ns[rows], start_ns[rows]))]
    return order


def _shift(start_ns: NDArray[np.int64], shift_ns: int) -> None:
    ends = (int(start_ns.min()), int(start_ns.max())) if len(start_ns) else (0, 0)
    if any(abs(end + shift_ns) >= MOST_NS for end in ends):
        raise OutOfRangeError
    start_ns += shift_ns


def _rank_of(header: Header, path: Path, notes: list[str]) -> int:
    said = header.distributed
    rank = as_int(said.rank) if said is not None else -1
    if 0 <= rank < 1 << 31:
        return rank
    found = RANK_IN_NAME.search(path.name)
    if found:
        notes.append(f"{path.name}: the file does not say its rank; {found[1]} is taken from its name")
        return int(found[1])
    notes.append(
        f"{path.name}: rank unknown, the file does not say it (no distributedInfo.rank), so it is not taken as 0"
    )
    return UNKNOWN_RANK


def _part(header: Header, rank: int, path: Path, *, base_ns: int, cpu_only: bool, dropped: int, mended: int) -> Part:
    said = header.distributed
    return Part(
        rank=rank,
        source=str(path),
        base_ns=base_ns,
        world_size=max(0, as_int(said.world_size, 0)) if said else 0,
        backend=said.backend if said and isinstance(said.backend, str) else "",
        cpu_only=cpu_only,
        dropped=dropped,
        mended=mended,
    )


def _say(notes: list[str], mended: Mended, part: Part, *, unusable: int, is_empty: bool) -> None:
    name = Path(part.source).name
    if mended.count:
        notes.append(
            f"{name}: {mended.count} events were no valid JSON and were mended (quotes in names, bare inf); "
            f"the first is {mended.first}"
        )
    if mended.dropped:
        notes.append(f"{name}: {mended.dropped} events could not be read; the first: {mended.first_dropped}")
    if mended.broken_off:
        notes.append(f"{name}: the file {mended.broken_off}")
    if unusable:
        notes.append(f"{name}: {unusable} spans without a usable time were left out")
    if part.cpu_only and not is_empty:
        notes.append(CPU_ONLY)
