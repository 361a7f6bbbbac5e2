"""Read one Kineto file, whole or chunked; both give the same Timeline.

Either way the text is decoded by the megabyte (peak below the file's size, and never less than Python's own 60 MB), and
a file that pieces cannot take is read whole after all. Whole keeps the text of a packed file meanwhile, so that it is
unpacked once even then (peak 1.7 times the text). A plain file is not kept: to read it again costs a fiftieth of
decoding it, to hold it a tenth.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal

from kit.timeline.columns import timeline_of
from kit.timeline.kineto import collector_paused, decode
from kit.timeline.pieces import PIECE_BYTES, IrregularError, timeline_in_pieces, timeline_in_windows
from kit.timeline.record import Timeline
from kit.timeline.source import MAX_BYTES, BrokenOffError, Stream, is_gzip, open_stream, read_bytes
from kit.timeline.steps import NO_MARKS, has_marks
from kit.timeline.window import Window

Mode = Literal["auto", "whole", "chunked"]
MODES: tuple[Mode, ...] = ("auto", "whole", "chunked")
Report = Callable[[str], None]

_PACKED_TIMES = 16  # gzip packs traces about fifteen times
# Below these a file is held whole.
_LARGE_BYTES = 32 << 20
_LARGE_GZIP_BYTES = 2 << 20


def read_kineto(
    file: Path,
    *,
    rank: int | None = None,
    strict: bool = True,
    max_bytes: int = MAX_BYTES,
    mode: Mode = "auto",
    report: Report | None = None,
) -> Timeline:
    """Read one file as one rank; `rank` overrides what the file says of it. `report` is told how far it is."""
    require_mode(mode)
    if mode == "chunked" or (mode == "auto" and is_large(file)) or not _is_packed(file):
        timeline = _read_in_pieces(file, rank=rank, strict=strict, max_bytes=max_bytes, report=report)
    else:
        timeline = _read_kept(file, rank=rank, strict=strict, max_bytes=max_bytes, report=report)
    notes = []
    if not len(timeline):
        notes.append(f"{file.name}: no spans in the file")
    elif not has_marks(timeline, timeline.ranks[0]):
        notes.append(NO_MARKS)
    return replace(timeline, notes=(*timeline.notes, *notes)) if notes else timeline


def require_mode(mode: str) -> None:
    """Raise `ValueError` for a mode that is none."""
    if mode not in MODES:
        raise ValueError(f"mode {mode!r}; expected one of {', '.join(map(repr, MODES))}")


def is_large(file: Path) -> bool:
    """Whether a trace is large enough to be read in pieces, and to be kept once read."""
    try:
        return file.stat().st_size > (_LARGE_GZIP_BYTES if is_gzip(file) else _LARGE_BYTES)
    except OSError:
        return False  # reading it says what is wrong


def _is_packed(file: Path) -> bool:
    try:
        return is_gzip(file)
    except OSError:
        return False  # reading it says what is wrong


def _read_in_pieces(file: Path, *, rank: int | None, strict: bool, max_bytes: int, report: Report | None) -> Timeline:
    with ExitStack() as opened:

        def source() -> Stream:
            return opened.enter_context(open_stream(file, max_bytes=max_bytes, report=report))

        try:
            return timeline_in_pieces(source, file, rank=rank, strict=strict)
        except IrregularError:
            pass
        except BrokenOffError:
            if strict:
                raise
    raw, is_whole = read_bytes(file, max_bytes=max_bytes, strict=strict)
    return _decoded(raw, file, rank=rank, strict=strict, is_whole=is_whole)


def _read_kept(file: Path, *, rank: int | None, strict: bool, max_bytes: int, report: Report | None) -> Timeline:
    is_whole = True
    with open_stream(file, max_bytes=max_bytes, report=report) as stream:
        expected = min(max_bytes, _PACKED_TIMES * file.stat().st_size)
        window = Window(stream, PIECE_BYTES, expected_bytes=expected)
        try:
            return timeline_in_windows(window.rewound, file, rank=rank, strict=strict)
        except (IrregularError, BrokenOffError):
            pass
        try:
            while window.more():
                pass
        except BrokenOffError:
            if strict:
                raise
            is_whole = False
    raw = window.whole()
    del window
    return _decoded(raw, file, rank=rank, strict=strict, is_whole=is_whole)


def _decoded(raw: bytes, file: Path, *, rank: int | None, strict: bool, is_whole: bool) -> Timeline:
    """The reader of whole texts, for what comes in no regular pieces."""
    decoded = decode(raw, file, strict=strict)
    del raw
    with collector_paused():
        timeline = timeline_of(decoded, file, rank=rank, strict=strict)
    notes = () if is_whole else (f"{file.name}: the gzip stream breaks off; what came before is read",)
    return replace(timeline, notes=(*timeline.notes, *notes))
