"""Read a Kineto trace piece by piece, so that memory stays near the size of the columns.

Pieces of a megabyte also fit the processor's cache, which makes this quicker than one decode of the whole text.
A piece ends between two events: the text up to there, as a list of its own, is valid JSON only if the cut is really
between two elements of the list (inside a string or a nested list its brackets would not close). Whatever is not
plain (a broken file, a second "traceEvents", events in odd places) is left to the reader of whole files, so both
read the same and refuse the same.
"""

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from kit.timeline.columns import Filler, OutOfRangeError
from kit.timeline.error import TraceError
from kit.timeline.exact import AbsoluteTimeError, as_int
from kit.timeline.kineto import Event, Header, Mended, Trace, collector_paused, seems_absolute
from kit.timeline.record import Timeline
from kit.timeline.typed_events import typed_decoder
from kit.timeline.window import Source, Window

PIECE_BYTES = 1 << 20
_LONGEST_EVENT = 32 << 20
_LONGEST_HEADER = 16 << 20
_MOST_TRIES = 16
_MOST_JOINED = 4  # pieces, before an end that is not found means a broken file
_MOST_FAILURES = 8  # pieces of odd types, before the quick structs are given up

_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE_LIST = re.compile(rb"\s*\[")
_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"\s*:)')
_END = re.compile(rb"\}\s*(?=\])")
_EMPTY = re.compile(rb"\s*(?=\])")
_CLOSED = re.compile(rb"\]\s*\Z")
_WRONG = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ArithmeticError)


class IrregularError(Exception):
    """A file that cannot be read in pieces; the reader of whole files decides what is wrong with it, if anything."""


def timeline_in_pieces(
    open_source: Callable[[], Source], path: Path, *, rank: int | None, strict: bool, piece_bytes: int = PIECE_BYTES
) -> Timeline:
    """The Timeline of a file that is read piece by piece; `open_source` starts at its beginning.

    Raises `IrregularError` when the file has to be read whole, and what `open_source` and its `readinto` raise.
    """
    return timeline_in_windows(lambda: Window(open_source(), piece_bytes), path, rank=rank, strict=strict)


def timeline_in_windows(open_window: Callable[[], Window], path: Path, *, rank: int | None, strict: bool) -> Timeline:
    """The same of a file seen through a window; `open_window` sets it to the beginning."""
    try:
        with collector_paused():
            try:
                return _Reading(open_window(), path, float, strict=strict).timeline(rank)
            except AbsoluteTimeError:
                return _Reading(open_window(), path, Decimal, strict=strict).timeline(rank)
    except (*_WRONG, OutOfRangeError) as error:
        raise IrregularError(str(error)) from error


class _Reading:
    """One pass over a file."""

    def __init__(self, window: Window, path: Path, time: type, *, strict: bool) -> None:
        self._window, self._path, self._time, self._strict = window, path, time, strict
        self._is_exact = time is not float
        self._typed = typed_decoder()
        self._any: msgspec.json.Decoder[Any] = msgspec.json.Decoder(list[Event[time]])  # type: ignore[valid-type]
        self._failures = _MOST_FAILURES if self._is_exact else 0
        self._seen_time = self._is_exact

    def timeline(self, rank: int | None) -> Timeline:
        head = self._head()
        base_ns = self._base_ns(head)
        filler = Filler(self._path, base_ns=base_ns or 0, strict=self._strict, guards_floats=not self._is_exact)
        header = self._header(head, self._fill(filler))
        if base_ns is not None and as_int(header.base_ns, 0) != base_ns:
            raise IrregularError("baseTimeNanoseconds comes twice")
        return filler.finish(header, Mended(), rank=rank)

    def _head(self) -> bytes:
        """The text up to the list of events, its bracket included; the window begins behind it."""
        window = self._window
        window.more()
        while not (found := _first(_BARE_LIST.match, window) or _first(_ARRAY.search, window)):
            if len(window) > _LONGEST_HEADER or not window.more():
                raise IrregularError('no "traceEvents"')
        head = bytes(window.view[window.begin : found.end()])
        self._look_for_time(head)
        window.begin = found.end()
        return head

    def _fill(self, filler: Filler) -> bytes:
        """Add all events to `filler`; returns the text after the list, its bracket included."""
        window = self._window
        is_first = True
        while True:
            more = window.more()
            cuts = _cuts(window) if more else []
            if more and not cuts and len(window) <= _LONGEST_EVENT:
                continue
            # The last ones may lie in a list inside an event, or behind the list of events.
            cut = next((cut for cut in cuts if self._add(cut[0], filler)), None)
            if cut is not None:
                window.begin, is_first = cut[1], False
                continue
            tail = self._end(filler, is_first=is_first)
            if tail is not None:
                return tail
            if not more or len(window) > _MOST_JOINED * window.piece_bytes:
                raise IrregularError("the list of events does not end")

    def _end(self, filler: Filler, *, is_first: bool) -> bytes | None:
        """Add the events before the end of the list; returns what follows them, None when the end is not here."""
        empty = _first(_EMPTY.match, self._window)
        if empty:
            if not is_first:
                raise IrregularError("a comma before the end of the list")
            return self._rest(empty.end())
        for end in _ends(self._window):
            if self._add(end, filler):
                return self._rest(end)
        return None

    def _rest(self, end: int) -> bytes:
        window = self._window
        window.begin = end
        while window.more():
            if len(window) > _LONGEST_HEADER:
                raise IrregularError("a long header after the events")
        return bytes(window.view[window.begin : window.end])

    def _add(self, end: int, filler: Filler) -> bool:
        """Add the events before `end`, where another byte stands; False when there is no list of whole events."""
        text, begin = self._window.view, self._window.begin - 1
        instead = text[begin], text[end]
        text[begin], text[end] = b"[]"
        try:
            return self._add_list(text[begin : end + 1], filler)
        finally:
            text[begin], text[end] = instead

    def _add_list(self, listed: memoryview, filler: Filler) -> bool:
        self._look_for_time(listed)
        if self._failures < _MOST_FAILURES:
            try:
                events = self._typed.decode(listed)
            except msgspec.ValidationError:
                self._failures += 1  # numbers as text, for instance
            except _WRONG:
                return False
            else:
                return _take(filler.add_typed, events)
        try:
            events = self._any.decode(listed)
        except msgspec.ValidationError:
            raise
        except _WRONG:
            return False
        return _take(filler.add, events)

    def _look_for_time(self, text: bytes | memoryview) -> None:
        if not self._seen_time:
            absolute = seems_absolute(text)
            if absolute:
                raise AbsoluteTimeError
            self._seen_time = absolute is not None

    def _base_ns(self, head: bytes) -> int | None:
        """The file's zero, when it stands before the events."""
        if b'"baseTimeNanoseconds"' not in head:
            return None
        return as_int(self._header(head, b"]}").base_ns, 0)

    def _header(self, head: bytes, tail: bytes) -> Header:
        if _BARE_LIST.fullmatch(head):
            if not _CLOSED.fullmatch(tail):
                raise IrregularError("text after the list")
            return Header()
        if _ARRAY.search(tail):
            raise IrregularError('a second "traceEvents"')
        trace = msgspec.json.decode(head + tail, type=Trace[float])
        if trace.events:
            raise IrregularError("events outside the list")
        return Header(distributed=trace.distributed, base_ns=trace.base_ns)


def _take(add: Callable[[list[Any]], None], events: list[Any]) -> bool:
    try:
        add(events)
    except TraceError as error:  # the reader of whole files says it, unless it finds something worse
        raise IrregularError(str(error)) from error
    return True


def _first(find: Callable[..., re.Match[bytes] | None], window: Window) -> re.Match[bytes] | None:
    return find(window.view, window.begin, window.end)


def _cuts(window: Window) -> list[tuple[int, int]]:
    """The last places between two objects, the very last first: where one ends, and where the next begins."""
    looked = 4096
    while True:
        found = list(_BETWEEN.finditer(window.view, max(window.begin, window.end - looked), window.end))
        if found or looked >= len(window):
            return [(match.start() + 1, match.end()) for match in found[: -_MOST_TRIES - 1 : -1]]
        looked *= 4


def _ends(window: Window) -> list[int]:
    """Places where the list may end, the last first: the text behind the list is short in most files."""
    found = [match.start() + 1 for match in _END.finditer(window.view, window.begin, window.end)]
    return found[: -_MOST_TRIES - 1 : -1]
