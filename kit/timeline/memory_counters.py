"""Memory over time, from the two files of the profiler that hold it.

A Kineto trace made with `profile_memory=True` has an instant event `[memory]` for each allocation and release, with
the allocator's totals after it. `with_memory` puts them into the columns of a Timeline, where the measure "memory", the
export and the timeline view find them; a live profile (`kit.profile(..., memory=True)`) has them there already.
`prof.export_memory_timeline(path.raw.json.gz)` writes [time, action, bytes, category] for each change, with the
category of `torch.profiler._memory_profiler` (parameter, gradient, activation, ...).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import compress
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from kit.timeline.error import TraceError
from kit.timeline.exact import EXACT_BELOW_US, MOST_NS, NO_TIME, nanoseconds
from kit.timeline.record import Timeline
from kit.timeline.source import MAX_BYTES, read_bytes

Time = TypeVar("Time", float, Decimal)

# Order of the raw export: _CATEGORY_TO_COLORS of torch/profiler/_memory_profiler.py.
CATEGORIES = (
    "parameter", "optimizer state", "input", "temporary", "activation", "gradient", "autograd detail", "unknown",
)  # fmt: skip
_NAME = "[memory]"
# One event: it holds numbers only, and is short.
_ALONE = re.compile(rb'\{[^{}]{0,999}"\[memory\]"[^{}]{0,999}\{[^{}]{0,999}\}\s{0,99}\}')
_Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
_CPU = 0  # DeviceType of the CPU; anything else is an accelerator


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Allocator:
    """One device as one rank uses it: `rows` of the memory columns of a Timeline, in order of time."""

    rank: int
    device: str
    rows: NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryTimeline:
    """Bytes by category, `[times, 8]` in the order of `CATEGORIES`, after all changes at each of `at_ns`.

    What was there before the profile began has time -1.
    """

    at_ns: NDArray[np.int64]
    sizes_bytes: NDArray[np.int64]

    @property
    def peak_bytes(self) -> int:
        """The largest sum over categories."""
        return int(self.sizes_bytes.sum(axis=1).max()) if len(self.at_ns) else 0


class _Args(msgspec.Struct):
    device_type: int = msgspec.field(default=_CPU, name="Device Type")
    device: _Int64 = msgspec.field(default=-1, name="Device Id")
    changed: _Int64 = msgspec.field(default=0, name="Bytes")
    allocated: _Int64 = msgspec.field(default=0, name="Total Allocated")
    reserved: _Int64 = msgspec.field(default=0, name="Total Reserved")


class _Event(msgspec.Struct, Generic[Time]):
    name: str = ""
    ph: str = ""
    ts: Time | None = None
    pid: int | str | float | None = ""
    tid: int | str | float | None = ""
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Trace(msgspec.Struct, Generic[Time]):
    events: list[_Event[Time]] = msgspec.field(name="traceEvents")


def with_memory(timeline: Timeline, path: str | Path, *, strict: bool = True, max_bytes: int = MAX_BYTES) -> Timeline:
    """The timeline of one rank with the memory events of the file it was read from.

    Raises `TraceError` for a file that is no trace, that was made without memory, or whose memory events hold a time or
    a number of bytes that cannot be (`strict=False` leaves these out); and for a timeline of several ranks.
    """
    if len(timeline.parts) != 1:
        raise TraceError(
            f"{path}: is of ranks {list(timeline.ranks)}; expected a Kineto trace of one rank for memory=True"
        )
    [part] = timeline.parts
    found = _events(Path(path), strict=strict, max_bytes=max_bytes)
    at = nanoseconds([event.ts for event, _ in found])
    good = (at > NO_TIME) & (np.abs(at + part.base_ns) < MOST_NS)
    if strict and not good.all():
        wrong = int(np.flatnonzero(~good)[0])
        raise TraceError(
            f"{path}: memory event {wrong} has ts {found[wrong][0].ts}; expected finite microseconds within 146 years. "
            "strict=False reads the others"
        )
    if strict and not found:
        raise TraceError(f"{path}: has no memory events; expected a trace made with profile_memory=True")
    found, at = list(compress(found, good.tolist())), at[good]
    lanes = {(lane.pid, lane.tid): number for number, lane in enumerate(timeline.lanes)}
    columns = {
        "rank": [part.rank] * len(found),
        "device": [-1 if args.device_type == _CPU else args.device for _, args in found],
        "lane": [lanes.get((str(event.pid), str(event.tid)), -1) for event, _ in found],
        "at_ns": at + part.base_ns,
        "changed_bytes": [args.changed for _, args in found],
        "allocated_bytes": [args.allocated for _, args in found],
        "reserved_bytes": [args.reserved for _, args in found],
    }
    order = np.argsort(at, kind="stable")
    arrays: dict[str, Any] = {f"memory_{name}": np.array(values, np.int64)[order] for name, values in columns.items()}
    notes = () if found else (f"{Path(path).name}: has no memory events that can be read",)
    return replace(timeline, notes=(*timeline.notes, *notes), **arrays)


def allocators(timeline: Timeline) -> tuple[Allocator, ...]:
    """The allocators whose changes a timeline holds, in order of rank, then device."""
    keys = sorted({*zip(timeline.memory_rank.tolist(), timeline.memory_device.tolist(), strict=True)})
    return tuple(
        Allocator(
            rank=rank,
            device=device_name(device),
            rows=np.flatnonzero((timeline.memory_rank == rank) & (timeline.memory_device == device)),
        )
        for rank, device in keys
    )


def device_name(device: int) -> str:
    """`memory_device` in words."""
    return "cpu" if device < 0 else f"device {device}"


def _events(path: Path, *, strict: bool, max_bytes: int) -> list[tuple[_Event[Any], _Args]]:
    """The memory events of a Kineto trace as they come; their times as decimals where floats are too coarse."""
    raw, _ = read_bytes(path, max_bytes=max_bytes, strict=strict)
    try:
        found = _decoded(raw, float, strict=strict)
        if any(event.ts is not None and abs(event.ts) >= EXACT_BELOW_US for event, _ in found):
            found = _decoded(raw, Decimal, strict=strict)
    except msgspec.DecodeError as error:
        raise TraceError(
            f"{path}: {error}; expected a Kineto trace in JSON with numbers in its memory events"
        ) from error
    return found


def _decoded(raw: bytes, time: type, *, strict: bool) -> list[tuple[_Event[Any], _Args]]:
    """All at once; one by one out of a file whose names are no JSON, or without `strict` out of any other."""
    one: type = _Event[time]  # type: ignore[valid-type]
    texts: Iterable[bytes] = ()
    events: list[_Event[Any]] = []
    try:
        events = msgspec.json.decode(raw, type=_Trace[time]).events  # type: ignore[valid-type]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        texts = [text[0] for text in _ALONE.finditer(raw)]
        if strict and (not texts or isinstance(error, msgspec.ValidationError)):
            raise msgspec.DecodeError(str(error)) from error
    found = []
    for event in events or texts:
        try:
            read = msgspec.json.decode(event, type=one) if isinstance(event, bytes) else event
            if read.name == _NAME and read.ph == "i":
                found.append((read, msgspec.json.decode(read.args, type=_Args)))
        except (msgspec.DecodeError, UnicodeDecodeError):
            if strict:
                raise
    return found


def read_memory_timeline(path: str | Path) -> MemoryTimeline:
    """Read what `prof.export_memory_timeline("x.raw.json.gz")` wrote.

    Raises `TraceError` unless it is a list of [time in ns, action, bytes, category 0 to 7].
    """
    raw, _ = read_bytes(Path(path))
    try:
        changes: Any = np.array(msgspec.json.decode(raw, type=list[tuple[int, int, int, int]]), np.int64).reshape(-1, 4)
    except (msgspec.DecodeError, OverflowError) as error:
        raise TraceError(f"{path}: {error}; expected a list of [time, action, bytes, category]") from error
    category = changes[:, 3]
    if len(category) and not (category.min() >= 0 and category.max() < len(CATEGORIES)):
        raise TraceError(
            f"{path}: categories {category.min()} to {category.max()}, expected 0 to {len(CATEGORIES) - 1}"
        )
    # A release and the old version of a change are written with negative bytes.
    by_category = np.zeros((len(changes), len(CATEGORIES)), np.int64)
    by_category[np.arange(len(changes)), category] = changes[:, 2]
    sums = np.cumsum(by_category, axis=0)
    last = np.flatnonzero(np.append(changes[1:, 0] != changes[:-1, 0], True)) if len(changes) else np.empty(0, np.int64)
    return MemoryTimeline(at_ns=changes[last, 0], sizes_bytes=sums[last])
