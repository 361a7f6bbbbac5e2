"""Grow a real trace to any size: copies of its events one after the other, with shifted times and ids.

The copies keep Kineto's own layout (spaces, line ends, order of keys), so that a reader sees text as the profiler
writes it; shifted are `ts`, `correlation`, `External id` and the ids of the arrows, so that no copy launches the
kernels of another. Nothing else changes: names repeat as they do in a long run.
"""

import gzip
import itertools
import re
from pathlib import Path

_SHIFTED = re.compile(rb'"(?:ts|correlation|External id|id)": (\d+(?:\.\d+)?)')
_GAP_US = 1000


def grow(source: Path, target: Path, *, megabytes: float) -> int:
    """Write `source` (JSON.gz of the profiler) to `target` as plain JSON of about that size; returns its bytes."""
    text = gzip.decompress(source.read_bytes())
    first = text.index(b'"traceEvents": [') + len(b'"traceEvents": [')
    last = text.rindex(b"\n  ]")
    head, events, tail = text[:first], text[first:last], text[last:]
    pieces, numbers = _template(events)
    shifted = list(zip(pieces, numbers, strict=False))
    times = [int(whole) for before, (whole, _) in shifted if before.endswith(b'"ts": ')]
    window_us = max(times) - min(times) + _GAP_US
    ids = 1 + max(int(whole) for before, (whole, _) in shifted if not before.endswith(b'"ts": '))
    written = 0
    with target.open("wb") as file:
        written += file.write(head)
        for copy in itertools.count():
            if written >= megabytes * 1e6:
                break
            written += file.write(b"," * bool(copy) + _copy(pieces, numbers, copy * window_us, copy * ids))
        written += file.write(tail)
    return written


def _template(events: bytes) -> tuple[list[bytes], list[tuple[bytes, bytes]]]:
    """The text between the numbers that shift, and those numbers as (whole part, fraction)."""
    pieces: list[bytes] = []
    numbers: list[tuple[bytes, bytes]] = []
    at = 0
    for found in _SHIFTED.finditer(events):
        pieces.append(events[at : found.start(1)])
        whole, dot, fraction = found[1].partition(b".")
        numbers.append((whole, dot + fraction))
        at = found.end()
    return [*pieces, events[at:]], numbers


def _copy(pieces: list[bytes], numbers: list[tuple[bytes, bytes]], shift_us: int, shift_ids: int) -> bytes:
    """One more copy; ids of 0 mean "none" to the profiler and stay."""
    out: list[bytes] = []
    for piece, (whole, fraction) in zip(pieces, numbers, strict=False):
        value = int(whole)
        shift = shift_us if piece.endswith(b'"ts": ') else shift_ids if value else 0
        out += (piece, b"%d" % (value + shift), fraction)
    return b"".join([*out, pieces[-1]])
