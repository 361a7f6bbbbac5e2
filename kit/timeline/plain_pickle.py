"""Load a pickle that may hold nothing but plain containers, numbers and text.

Flight-recorder dumps are pickles and come from other people's machines. Not only are classes and functions refused:
every instruction outside a short list is, before anything is loaded, because pickle can also be made to allocate
gigabytes from a few bytes (a memo index, a bytearray's length, one list named a million times).
"""

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any, NoReturn

from kit.timeline.error import TraceError

_PLAIN = frozenset({
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG",
    "LONG1", "FLOAT", "BINFLOAT", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "EMPTY_LIST", "APPEND", "APPENDS", "LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
    "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET",
    "LONG_BINGET",
})  # fmt: skip
_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
# What pickle's own machine raises on nonsense, as documented ("not limited to") and as fuzzed.
_BROKEN = (
    pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError,
    MemoryError, RecursionError,
)  # fmt: skip


class _PlainUnpickler(pickle.Unpickler):
    """The second lock: no instruction that reaches these is on the list."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"names {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError(f"refers to {pid!r}")


def load_plain(raw: bytes, path: Path) -> Any:
    """The object that `raw` pickles. Raises `TraceError` when it holds more than plain data, or is broken."""
    try:
        for operation, argument, position in pickletools.genops(raw):
            if operation.name not in _PLAIN:
                named = f" {argument!r}" if isinstance(argument, str) else ""
                raise TraceError(
                    f"{path}: refused: its pickle holds {operation.name}{named[:80]} at byte {position}, which is no "
                    "plain data; expected only dicts, lists, numbers and text, as a flight recorder writes them. "
                    "Do not load it with pickle either unless you trust who made it"
                )
            if operation.name in _PUTS and int(argument or 0) > len(raw):
                raise TraceError(f"{path}: refused: its pickle has memo index {argument} at byte {position}")
        found = _PlainUnpickler(io.BytesIO(raw)).load()
    except TraceError:
        raise
    except _BROKEN as error:
        raise TraceError(
            f"{path}: is no whole pickle ({error}); expected a flight-recorder dump. Copy it again"
        ) from error
    if not _is_within(found, len(raw)):
        raise TraceError(
            f"{path}: refused: its pickle repeats lists by reference, so that {len(raw)} bytes stand for many more "
            "values; expected a flight-recorder dump"
        )
    return found


def _is_within(found: Any, most: int) -> bool:
    """Whether walking through everything, repeats included, meets at most so many values."""
    waiting, met = [found], 0
    while waiting:
        value = waiting.pop()
        children = list(value.values()) if isinstance(value, dict) else value
        if isinstance(children, list | tuple):
            met += len(children)
            if met > most:
                return False
            waiting += children
    return True
