"""Read a trace that is not valid JSON, event by event.

Kineto wrote names without escaping (pytorch/pytorch#146900, fixed by pytorch/kineto#1459): one label with
quotes in it and no viewer opens the file. Every event is parsed on its own here; in one that fails, the name
is taken up to the quote that a known key follows, and escaped. Also bare `inf` and `nan`, control characters
and broken UTF-8 are mended. Slower than the typed reader, and only used when that one fails.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from kit.timeline.error import NoTraceError, TraceError

_KEYS = "ph|cat|name|pid|tid|ts|dur|id|args|s|bp"
_ARRAY = re.compile(r'"traceEvents"\s*:\s*\[')
_NEXT_EVENT = re.compile(rf'\}}(?=\s*,\s*\{{\s*"(?:{_KEYS})"\s*:)')
_LAST_EVENT = re.compile(r"\}(?=\s*\]\s*(?:[,}]|\Z))")
_NAME = re.compile(r'"name"\s*:\s*"')
_NAME_END = re.compile(rf'"(?=\s*(?:,\s*"(?:{_KEYS})"\s*:|\}}))')
_BARE_NUMBER = re.compile(r'("\s*:\s*)[-+]?(?:inf|nan)(?=\s*[,}])', re.IGNORECASE)
_SPACE = re.compile(r"[\s,]*")
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|["\\]')
# Half a pair of UTF-16 makes text that nothing can write again.
_LONE_SURROGATE = re.compile(
    r"\\u[dD][89aAbB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?<!\\u[dD][89aAbB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_MOST_NAME_ENDS = 64
_LONGEST_EVENT = 256 << 10  # characters


@dataclass(slots=True, kw_only=True)
class Found:
    """Spans (`ph` X) as plain dicts with their index in the file, the header, and the counts so far."""

    header: dict[str, Any] = field(default_factory=dict)
    events: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    count: int = 0
    first: str = ""
    dropped: int = 0
    first_dropped: str = ""
    broken_off: str = ""


def mend(raw: bytes, path: Path, cause: Exception, *, strict: bool) -> Found:
    """Find the events of a broken file. `cause` is why the typed reader gave up; it is shown when nothing is found."""
    text = _LONE_SURROGATE.sub(r"\\ufffd", raw.decode("utf-8", errors="replace"))
    array = re.match(r"\s*\[", text) or _ARRAY.search(text)
    if array is None:
        raise NoTraceError(f'{path}: {cause}; expected JSON with a list "traceEvents"') from cause
    found = Found()
    end = array.end()
    for index, (start, end, event) in enumerate(_events(text, array.end())):
        if event is None:
            event, shown = _mend_event(text[start:end])
            if event is not None and not found.count:
                found.first = f"{shown!r} {_place(text, start, index)}"
            found.count += event is not None
        if event is None:
            _drop(found, f"{_place(text, start, index)} is no valid JSON", path, strict=strict)
        elif not isinstance(event, dict):
            _drop(found, f"{_place(text, start, index)} is a {type(event).__name__}", path, strict=strict)
        elif event.get("ph") == "X" and event.get("cat") != "Trace":
            found.events.append((index, event))
    tail = _SPACE.match(text, end).end()  # type: ignore[union-attr]  # matches always
    if text[tail : tail + 1] != "]":
        found.broken_off = f"breaks off after {len(found.events)} spans (line {text.count(chr(10), 0, end) + 1})"
        if strict:
            raise TraceError(
                f'{path}: {found.broken_off}; expected the end of "traceEvents". '
                "Write the trace again, or read what is there with strict=False"
            )
    found.header = _header(text, array.start(), array.end(), tail)
    return found


def _events(text: str, pos: int) -> Iterator[tuple[int, int, Any]]:
    """Each event's start, end and value; the value is None when it does not parse."""
    following, last = _Finder(_NEXT_EVENT, text), _Finder(_LAST_EVENT, text)
    while True:
        pos = _SPACE.match(text, pos).end()  # type: ignore[union-attr]  # matches always
        if pos >= len(text) or text[pos] == "]":
            return
        stop = following.end_after(pos) or last.end_after(pos)
        event, length = _first_value(text, pos, stop or len(text))
        if not length and stop is None:
            return
        end = pos + length if length else stop or len(text)
        yield pos, end, event
        pos = end


def _first_value(text: str, pos: int, stop: int) -> tuple[Any, int]:
    """The JSON value at `pos` and its length, 0 when there is none.

    Tried on the text up to `stop`, then on a longer piece, never on the whole text: the error that the decoder raises
    counts lines from the beginning of what it was given.
    """
    for limit in sorted({min(stop, pos + _LONGEST_EVENT), min(len(text), pos + _LONGEST_EVENT)}):
        try:
            return _DECODER.raw_decode(text[pos:limit])
        except (ValueError, RecursionError):
            continue
    return None, 0


class _Finder:
    """Ends of matches of one pattern, asked for at rising positions: the text is searched once in all."""

    def __init__(self, pattern: re.Pattern[str], text: str) -> None:
        self._ends = (match.end() for match in pattern.finditer(text))
        self._end: int | None = 0

    def end_after(self, pos: int) -> int | None:
        """The end of the first match that ends after `pos`."""
        while self._end is not None and self._end <= pos:
            self._end = next(self._ends, None)
        return self._end


def _mend_event(text: str) -> tuple[Any, str]:
    """The event after mending, and its name; (None, "") when nothing helped."""
    text = _BARE_NUMBER.sub(r"\1null", text)
    event = _parse(text)
    if event is not None:
        return event, str(event.get("name", ""))
    start = _NAME.search(text)
    if start is None:
        return None, ""
    for tried, stop in enumerate(_NAME_END.finditer(text, start.end())):
        name = _ESCAPE.sub(_escape, text[start.end() : stop.start()])
        event = _parse(text[: start.end()] + name + text[stop.start() :])
        if event is not None:
            return event, str(event.get("name", ""))
        if tried == _MOST_NAME_ENDS:
            break
    return None, ""


def _parse(text: str) -> dict[str, Any] | None:
    text = text.strip()  # raw_decode takes no space before the value
    try:
        event, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and end == len(text) else None


def _escape(found: re.Match[str]) -> str:
    seen = found[0]
    return seen if len(seen) > 1 else "\\" + seen


def _header(text: str, start: int, first: int, tail: int) -> dict[str, Any]:
    """Header keys around the list of events; those after it are lost when they do not parse."""
    if text[start] == "[":
        return {}
    for candidate in (text[:first] + text[tail:], text[:first] + "]}"):
        header = _parse(candidate)
        if header is not None:
            header.pop("traceEvents", None)
            return header
    return {}


def _drop(found: Found, why: str, path: Path, *, strict: bool) -> None:
    if strict:
        raise TraceError(f"{path}: {why}; expected an event object. strict=False reads the other events")
    found.dropped += 1
    found.first_dropped = found.first_dropped or why


def _place(text: str, start: int, index: int) -> str:
    line = text.count("\n", 0, start) + 1
    return f"at traceEvents[{index}] (line {line}, character {start})"


def _decimal(digits: str) -> Decimal | None:
    try:
        return Decimal(digits)
    except ArithmeticError:
        return None


def _integer(digits: str) -> int | None:
    return int(digits) if len(digits) < 40 else None


# Control characters are allowed in strings, numbers keep their digits, NaN is a missing value.
_DECODER = json.JSONDecoder(strict=False, parse_float=_decimal, parse_int=_integer, parse_constant=lambda _: None)
