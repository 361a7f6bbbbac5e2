"""Turn the decoded events of one rank into the columns of a Timeline.

Everything a file may hold in two shapes (ids as numbers or text, members as a list or as text of a list) becomes
one shape here, so that no later module has to ask again.
"""

import re
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kit.timeline.error import TraceError
from kit.timeline.kineto import NO_ARGS, Args, Decoded, Event
from kit.timeline.record import (
    COLUMNS,
    DEVICE_CATEGORIES,
    UNKNOWN_RANK,
    Category,
    Group,
    Lane,
    Part,
    Timeline,
)

# Spellings of torch 1.x beside today's; a category outside the table is OTHER.
_CATEGORIES = {
    "kernel": Category.KERNEL, "Kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY, "Memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET, "Memset": Category.MEMSET,
    "cuda_runtime": Category.RUNTIME, "Runtime": Category.RUNTIME, "runtime": Category.RUNTIME,
    "cuda_driver": Category.DRIVER,
    "cpu_op": Category.CPU_OP, "Operator": Category.CPU_OP,
    "user_annotation": Category.ANNOTATION, "User Annotation": Category.ANNOTATION,
    "gpu_user_annotation": Category.GPU_ANNOTATION,
    "python_function": Category.PYTHON,
    "overhead": Category.OVERHEAD,
    "cuda_sync": Category.SYNC,
}  # fmt: skip
_OLD_PROCESSES = {"CPU functions": Category.CPU_OP, "CUDA functions": Category.KERNEL}
_NUMBERS = ("correlation", "external", "sequence", "elements_in", "elements_out", "copied_bytes")
_MOST_NS = 1 << 62  # sums of two times stay inside int64
_RANK_IN_NAME = re.compile(r"(?:rank|worker)[_\-]?(\d{1,6})(?!\d)", re.IGNORECASE)


class Ids:
    """Text (or any hashable) to small ids, in order of first use."""

    def __init__(self) -> None:
        self._ids: dict[Any, int] = {}

    def of(self, keys: Iterable[Any]) -> NDArray[np.int32]:
        """The id of each key; new keys get the next id."""
        ids = self._ids
        return np.array([ids.setdefault(key, len(ids)) for key in keys], np.int32)

    def known(self) -> tuple[Any, ...]:
        """The keys in order of their id."""
        return tuple(self._ids)


def timeline_of(decoded: Decoded, path: Path, *, rank: int | None = None, strict: bool = True) -> Timeline:
    """The Timeline of one file. `rank` overrides what the file says.

    Raises `TraceError` for a span without usable times; `strict=False` drops and counts it.
    """
    notes: list[str] = []
    base_ns = as_int(decoded.header.base_ns, 0)
    events, start, duration, unusable = _times(decoded.events, base_ns, path, strict=strict)
    args = [event.args or NO_ARGS for event in events]
    category = _category_column(events)
    rank = _rank_of(decoded, path, notes) if rank is None else rank
    strings, lanes, groups = Ids(), Ids(), Ids()
    order = np.lexsort((-duration, start))
    columns: dict[str, NDArray[Any]] = {
        "rank": np.full(len(events), rank, np.int32),
        "start_ns": start,
        "duration_ns": duration,
        "name": strings.of(event.name for event in events),
        "category": category,
        "lane": lanes.of((str(event.pid), str(event.tid)) for event in events),
        **{name: _integers(getattr(a, name) for a in args) for name in _NUMBERS},
        "collective": _ids_where_text(strings, (a.collective for a in args)),
        "dtype": _ids_where_text(strings, (a.dtype for a in args)),
        "group": _group_column(groups, args),
        **_places(category, args),
    }
    cpu_only = not bool(np.isin(category, DEVICE_CATEGORIES).any())
    part = _part(decoded, rank, path, base_ns=base_ns, cpu_only=cpu_only, unusable=unusable)
    _say(notes, decoded, part, unusable, path)
    return Timeline(
        parts=(part,),
        strings=strings.known(),
        lanes=tuple(Lane(rank=rank, pid=pid, tid=tid) for pid, tid in lanes.known()),
        groups=groups.known(),
        notes=tuple(notes),
        **{name: columns[name][order] for name in COLUMNS},
    )


def as_int(value: Any, missing: int = -1) -> int:
    """A whole number however the file wrote it (`7`, `"7"`, `"0x7"`, `7.0`), else `missing`."""
    number: Any = value
    if isinstance(value, str):
        try:
            number = int(value, 10 if value.isdecimal() else 0) if len(value) < 24 else missing
        except ValueError:
            return missing
    elif isinstance(value, float | Decimal):
        number = int(value) if -_MOST_NS < value < _MOST_NS and value == int(value) else missing
    return number if isinstance(number, int) and -_MOST_NS < number < _MOST_NS else missing


def _integers(values: Iterable[Any]) -> NDArray[np.int64]:
    return np.array(
        [-1 if v is None else v if type(v) is int and -1 <= v < _MOST_NS else as_int(v) for v in values],
        np.int64,
    )


def _times(
    events: list[Event[Any]], base_ns: int, path: Path, *, strict: bool
) -> tuple[list[Event[Any]], NDArray[np.int64], NDArray[np.int64], int]:
    """Events with usable times, start and duration in exact nanoseconds, and how many were left out."""
    start = _nanoseconds([event.ts for event in events])
    duration = _nanoseconds([event.dur for event in events])
    usable = (start > -_MOST_NS) & (duration >= 0)
    in_range = usable & (np.abs(start + base_ns) < _MOST_NS)
    wrong = np.flatnonzero(~in_range)
    # A negative duration marks a span that never ended: torch writes it, so it is no fault of the file.
    fatal = [i for i in wrong.tolist() if not (start[i] > -_MOST_NS and -_MOST_NS < duration[i] < 0)]
    if strict and fatal:
        event = events[fatal[0]]
        raise TraceError(
            f"{path}: span {fatal[0]} ({event.name[:60]!r}) has ts {event.ts} and dur {event.dur}; expected finite "
            "microseconds within 146 years. strict=False reads the others"
        )
    if len(wrong):
        events = [event for event, good in zip(events, in_range.tolist(), strict=True) if good]
    return events, start[in_range] + base_ns, duration[in_range], len(wrong)


def _nanoseconds(times: list[Any]) -> NDArray[np.int64]:
    """Microseconds to whole nanoseconds; -2**62 where there is no usable time."""
    if any(isinstance(time, Decimal) for time in times):
        return np.array([_exact_ns(time) for time in times], np.int64)
    us = np.array(times, np.float64)  # None becomes NaN
    good = np.abs(us) < _MOST_NS / 1000
    us = np.where(good, us, 0.0)
    # us * 1000 would round a second time and be 1 ns off from 2**42 us on (seen in a trace of NCCL 2.17).
    whole = np.floor(us)
    nanoseconds = whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000.0).astype(np.int64)
    return np.where(good, nanoseconds, -_MOST_NS)


def _exact_ns(time: Any) -> int:
    if time is None:
        return -_MOST_NS
    digits = Decimal(time)
    if not digits.is_finite() or (digits and digits.adjusted() > 16):
        return -_MOST_NS
    if digits.adjusted() < -9:
        return 0
    nanoseconds = int((digits * 1000).to_integral_value())
    return nanoseconds if abs(nanoseconds) < _MOST_NS else -_MOST_NS


def _category_column(events: list[Event[Any]]) -> NDArray[np.uint8]:
    table = _CATEGORIES
    return np.array(
        [
            table.get(event.cat, Category.OTHER) if event.cat else _OLD_PROCESSES.get(str(event.pid), Category.OTHER)
            for event in events
        ],
        np.uint8,
    )


def _places(category: NDArray[np.uint8], args: list[Args]) -> dict[str, NDArray[np.int64]]:
    """Device and stream of device events; -1 elsewhere (launch calls of ROCm name a stream's address)."""
    device, stream = np.full((2, len(args)), -1, np.int64)
    for row in np.flatnonzero(np.isin(category, DEVICE_CATEGORIES)).tolist():
        device[row], stream[row] = as_int(args[row].device), as_int(args[row].stream)
    in_range = np.abs(device) < 1 << 31
    return {"device": np.where(in_range, device, -1).astype(np.int32), "stream": stream}


def _ids_where_text(strings: Ids, values: Iterable[Any]) -> NDArray[np.int32]:
    texts = [value if isinstance(value, str) and value else None for value in values]
    column = np.full(len(texts), -1, np.int32)
    rows = [row for row, text in enumerate(texts) if text is not None]
    column[rows] = strings.of(texts[row] for row in rows)
    return column


def _group_column(groups: Ids, args: list[Args]) -> NDArray[np.int32]:
    column = np.full(len(args), -1, np.int32)
    rows = [row for row, a in enumerate(args) if a.group_name is not None]
    column[rows] = groups.of(
        Group(
            name=str(args[row].group_name),
            description=str(args[row].group_description or ""),
            ranks=_members(args[row].group_ranks),
        )
        for row in rows
    )
    return column


def _members(ranks: Any) -> tuple[int, ...]:
    """Members of a group: a list, or the text of one; () when unknown or shortened with dots."""
    if isinstance(ranks, str):
        try:
            ranks = msgspec.json.decode(ranks)
        except (msgspec.DecodeError, RecursionError):
            return ()
    if not isinstance(ranks, list):
        return ()
    members = tuple(as_int(rank) for rank in ranks)
    return members if all(member >= 0 for member in members) else ()


def _rank_of(decoded: Decoded, path: Path, notes: list[str]) -> int:
    said = decoded.header.distributed
    rank = as_int(said.rank) if said is not None else -1
    if 0 <= rank < 1 << 31:
        return rank
    found = _RANK_IN_NAME.search(path.name)
    if found:
        notes.append(f"{path.name}: the file does not say its rank; {found[1]} is taken from its name")
        return int(found[1])
    notes.append(
        f"{path.name}: rank unknown, the file does not say it (no distributedInfo.rank), so it is not taken as 0"
    )
    return UNKNOWN_RANK


def _part(decoded: Decoded, rank: int, path: Path, *, base_ns: int, cpu_only: bool, unusable: int) -> Part:
    said = decoded.header.distributed
    return Part(
        rank=rank,
        source=str(path),
        base_ns=base_ns,
        world_size=max(0, as_int(said.world_size, 0)) if said else 0,
        backend=said.backend if said and isinstance(said.backend, str) else "",
        cpu_only=cpu_only,
        dropped=decoded.mended.dropped + unusable,
        mended=decoded.mended.count,
    )


def _say(notes: list[str], decoded: Decoded, part: Part, unusable: int, path: Path) -> None:
    mended = decoded.mended
    if mended.count:
        notes.append(
            f"{path.name}: {mended.count} events were no valid JSON and were mended (quotes in names, bare inf); "
            f"the first is {mended.first}"
        )
    if mended.dropped:
        notes.append(f"{path.name}: {mended.dropped} events could not be read; the first: {mended.first_dropped}")
    if mended.broken_off:
        notes.append(f"{path.name}: the file {mended.broken_off}")
    if unusable:
        notes.append(f"{path.name}: {unusable} spans without a usable time were left out")
    if part.cpu_only and decoded.events:
        notes.append(
            "CPU-only: no event of a device, so the threads of the host count as the device. "
            "Profile with ProfilerActivity.CUDA to see a GPU"
        )
