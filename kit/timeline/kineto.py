"""Decode a Kineto (Chrome JSON) trace into typed events, without losing a nanosecond.

Typed structs keep only the fields that matter, and the garbage collector is off while they are made:
2 to 3 times less CPU (facts: 112 MB, 436 k events). Times are microseconds with three decimals. As binary
floats they are exact below 2**43 us; old files hold absolute times (1.7e15 us), whose digits are read as
decimals instead (pytorch/kineto#919).
"""

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from kit.timeline.error import NoTraceError, TraceError
from kit.timeline.exact import EXACT_BELOW_US

Time = TypeVar("Time", float, Decimal)

_FIRST_TIME = re.compile(rb'"ts"\s*:\s*"?(\d+)')
_SOMETHING = re.compile(rb"\S")
_BARE_LIST = re.compile(rb"\s*\[")


WHOLE_PROFILE = "Trace"  # the category of a span that covers everything: no event


class Args(msgspec.Struct, frozen=True, gc=False):
    """The arguments of an event that the columns keep. Typed `Any`: files of ten years disagree about them."""

    correlation: Any = None
    external: Any = msgspec.field(default=None, name="External id")
    sequence: Any = msgspec.field(default=None, name="Sequence number")
    device: Any = None
    stream: Any = None
    copied_bytes: Any = msgspec.field(default=None, name="bytes")
    collective: Any = msgspec.field(default=None, name="Collective name")
    elements_in: Any = msgspec.field(default=None, name="In msg nelems")
    elements_out: Any = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    group_name: Any = msgspec.field(default=None, name="Process Group Name")
    group_description: Any = msgspec.field(default=None, name="Process Group Description")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    graph: Any = msgspec.field(default=None, name="graph id")
    node: Any = msgspec.field(default=None, name="graph node id")


NO_ARGS = Args()
Id = int | str | float | None


class Event(msgspec.Struct, Generic[Time], gc=False):
    """One event; `ts` and `dur` in microseconds."""

    ph: str = ""
    cat: str | None = ""
    name: str = ""
    pid: Id = ""
    tid: Id = ""
    ts: Time | None = None
    dur: Time | None = None
    args: Args | None = NO_ARGS


class Distributed(msgspec.Struct):
    """The header's word on the job."""

    rank: Any = None
    world_size: Any = None
    backend: Any = None
    pg_config: Any = None


class Header(msgspec.Struct, kw_only=True):
    """Header keys; each may be missing, and in old files all are."""

    distributed: Distributed | None = msgspec.field(default=None, name="distributedInfo")
    base_ns: Any = msgspec.field(default=None, name="baseTimeNanoseconds")


class Trace(Header, Generic[Time], kw_only=True):
    """A whole file."""

    events: list[Event[Time]] = msgspec.field(name="traceEvents")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mended:
    """How many events were mended or dropped; `first` shows the first mended name with its place."""

    count: int = 0
    first: str = ""
    dropped: int = 0
    first_dropped: str = ""
    broken_off: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Spans of one file (`ph` X), its header, and what had to be done to read it."""

    header: Header
    events: list[Event[Any]]
    mended: Mended


def decode(raw: bytes, path: Path, *, strict: bool = True) -> Decoded:
    """Decode the bytes of a trace; `path` only serves the messages.

    A file that is no valid JSON is read event by event: names with unescaped quotes are mended and counted.
    What cannot be mended (or a file that breaks off) is a `TraceError`, or dropped and counted with `strict=False`.
    """
    if not _SOMETHING.search(raw):
        raise NoTraceError(f'{path}: is empty; expected a trace in JSON with a list "traceEvents"')
    with collector_paused():
        try:
            trace = _decode_whole(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ArithmeticError) as error:
            return _decode_mending(raw, path, error, strict=strict)
        spans = [event for event in trace.events if event.ph == "X" and event.cat != WHOLE_PROFILE]
        header = Header(distributed=trace.distributed, base_ns=trace.base_ns)
        return Decoded(header=header, events=spans, mended=Mended())


def seems_absolute(raw: bytes | memoryview) -> bool | None:
    """Whether the first time in the text is too large for floats to hold its nanoseconds; None without a time."""
    first = _FIRST_TIME.search(raw)
    return None if first is None else not (len(first[1]) < 14 and int(first[1]) < EXACT_BELOW_US)


def _decode_whole(raw: bytes) -> Trace[Any]:
    if not seems_absolute(raw):
        trace = _decode_as(raw, float)
        if all(event.ph != "X" or event.cat == WHOLE_PROFILE or _is_exact(event.ts) for event in trace.events):
            return trace
    return _decode_as(raw, Decimal)


def _is_exact(ts: float | None) -> bool:
    return ts is None or -EXACT_BELOW_US < ts < EXACT_BELOW_US


def _decode_as(raw: bytes, time: type) -> Trace[Any]:
    if _BARE_LIST.match(raw):  # torch's profiler of 1.x wrote the bare list
        return Trace(events=msgspec.json.decode(raw, type=list[Event[time]]))  # type: ignore[valid-type]
    return msgspec.json.decode(raw, type=Trace[time])  # type: ignore[valid-type]


def _decode_mending(raw: bytes, path: Path, cause: Exception, *, strict: bool) -> Decoded:
    from kit.timeline.mend import mend  # few files need it, and its patterns cost 10 ms

    found = mend(raw, path, cause, strict=strict)
    events: list[Event[Any]] = []
    dropped, first = found.dropped, found.first_dropped
    for index, event in found.events:
        try:
            events.append(msgspec.convert(event, Event[Decimal]))
        except msgspec.ValidationError as error:
            place = f"traceEvents[{index}]"
            if strict:
                raise TraceError(
                    f"{path}: {place}: {error}; expected an event of a Chrome trace. strict=False reads the others"
                ) from error
            dropped += 1
            first = first or f"{place}: {error}"
    try:
        header = msgspec.convert(found.header, Header)
    except msgspec.ValidationError as error:
        raise TraceError(f"{path}: header: {error}; expected the header of a Kineto trace") from error
    mended = Mended(
        count=found.count,
        first=found.first,
        dropped=dropped,
        first_dropped=first,
        broken_off=found.broken_off,
    )
    return Decoded(header=header, events=events, mended=mended)


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection inside: nothing here makes cycles, and collecting costs more than parsing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
