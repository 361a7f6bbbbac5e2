"""Read traces of one or more ranks into one Timeline, whatever wrote them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from kit import progress
from kit.timeline.error import NoTraceError, TraceError
from kit.timeline.kineto_file import Mode, Report, is_large, read_kineto, require_mode
from kit.timeline.memory_counters import with_memory
from kit.timeline.merge import merge
from kit.timeline.record import UNKNOWN_RANK, Timeline
from kit.timeline.source import MAX_BYTES, files_of, first_bytes, unpacked

_TRACES = (".json", ".json.gz", ".sqlite", ".sqlite.gz")
_LOGS = (".pkl", ".pickle", ".log", ".pkl.gz", ".log.gz")
_DUMPS = (b'"last_enqueued_collective"', b'"collective_seq_id"')  # in both forms of JSON within the first bytes
_SQLITE = b"SQLite format 3\x00"


def read(
    paths: str | Path | Iterable[str | Path],
    *,
    strict: bool = True,
    max_bytes: int = MAX_BYTES,
    mode: Mode = "auto",
    cache: bool = True,
    memory: bool = False,
) -> Timeline:
    """Read a trace file, several (one a rank), or a folder of them.

    Reads the Kineto/Chrome JSON that `torch.profiler` writes, plain or gzip, of any version and device, and SQLite
    exports of Nsight Systems. Names that are no valid JSON are mended, counted and noted. `strict=False` also reads a
    file that breaks off, drops and counts events that cannot be read, and leaves out (and names) files of a folder
    that fit no rank. Of a folder, files that are no traces are noted and left out. `max_bytes` bounds what one file
    may unpack to. `mode`: "chunked" holds a megabyte of the text, "whole" all the text of a packed file, so that it is
    unpacked once even when it has to be mended; "auto" chooses by size, and the result is the same. `cache=False`
    neither looks up nor keeps large traces (see `kit.timeline.cache`).
    `memory`: also the allocators' changes, of traces made with `profile_memory=True` (reads each file twice, whole).
    Raises `TraceError`, also when two files are of one rank, or when one of several does not say its rank.
    Cost: about 0.6 s of CPU for 100 MB of JSON.
    """
    require_mode(mode)
    files, in_folder = files_of(paths, endings=_TRACES + _LOGS, expected="a trace in JSON or JSON.gz")
    notes: list[str] = []
    timelines: list[Timeline] = []
    with progress.task("read traces", total=len(files)) as work:
        for file in files:

            def report(message: str) -> None:
                work.advance(message, by=0)

            try:
                if in_folder and file.name.endswith(_LOGS):
                    raise NoTraceError(f"{file}: is a log, no trace; kit.read_log reads it")
                one = _read_kept(file, strict=strict, max_bytes=max_bytes, mode=mode, cache=cache, report=report)
                timelines.append(with_memory(one, file, strict=strict, max_bytes=max_bytes) if memory else one)
            except NoTraceError as error:
                if not in_folder:
                    raise
                notes.append(f"left out: {error}")
            work.advance(file.name)
    if not timelines:
        raise TraceError(
            f"{paths}: none of its {len(files)} files is a trace; expected JSON or JSON.gz with a list "
            '"traceEvents", or an SQLite export of Nsight Systems'
        )
    if in_folder and not strict:
        timelines = _placeable(timelines, notes)
    timeline = merge(timelines)
    return replace(timeline, notes=(*timeline.notes, *notes)) if notes else timeline


def read_file(
    file: Path,
    *,
    rank: int | None = None,
    strict: bool = True,
    max_bytes: int = MAX_BYTES,
    mode: Mode = "auto",
    report: Report | None = None,
) -> Timeline:
    """Read one file as one rank; `rank` overrides what the file says of it. Nothing is kept."""
    begin = first_bytes(file, 512)
    if begin.startswith(_SQLITE):
        from kit.timeline.nsys import read_nsys

        with unpacked(file, max_bytes=max_bytes) as plain:
            return read_nsys(plain, name=file, rank=rank, strict=strict)
    if begin.startswith(b"PK\x03\x04"):
        raise NoTraceError(f"{file}: is a zip archive, no trace; kit.load reads what kit.save wrote")
    if begin[:1] == b"\x80" or any(sign in begin for sign in _DUMPS):
        raise NoTraceError(
            f'{file}: is a flight-recorder dump or another pickle, no trace; expected JSON with a list "traceEvents". '
            "kit.read_log reads dumps and logs"
        )
    return read_kineto(file, rank=rank, strict=strict, max_bytes=max_bytes, mode=mode, report=report)


def _read_kept(file: Path, *, strict: bool, max_bytes: int, mode: Mode, cache: bool, report: Report | None) -> Timeline:
    """Read a file, or recall what it was read into before."""
    if not (cache and is_large(file)):
        return read_file(file, strict=strict, max_bytes=max_bytes, mode=mode, report=report)
    from kit.timeline import cache as kept  # hashes and archives: 40 ms that small traces need not pay

    entry = kept.entry_of(file, strict=strict)
    timeline = kept.recall(entry, file) if entry is not None else None
    if timeline is None:
        timeline = read_file(file, strict=strict, max_bytes=max_bytes, mode=mode, report=report)
        if entry is not None and len(timeline.parts) == 1:
            kept.keep(timeline, entry)
    return timeline


def _placeable(timelines: list[Timeline], notes: list[str]) -> list[Timeline]:
    """Those whose ranks are known and not taken; the others are named in the notes."""
    placed: list[Timeline] = []
    taken: Counter[int] = Counter()
    for timeline in timelines:
        sources = ", ".join(dict.fromkeys(timeline.sources))
        if UNKNOWN_RANK in timeline.ranks and len(timelines) > 1:
            notes.append(f"left out: {sources}: its rank is unknown; name it rankN")
        elif double := [rank for rank in timeline.ranks if taken[rank]]:
            first = next(t.sources[0] for t in placed if double[0] in t.ranks)
            notes.append(f"left out: {sources}: rank {double[0]} was already read from {first}")
        else:
            placed.append(timeline)
            taken.update(timeline.ranks)
    return placed or timelines[:1]
