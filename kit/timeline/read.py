"""Read traces of one or more ranks into one Timeline."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from kit import progress
from kit.timeline.columns import timeline_of
from kit.timeline.error import NoTraceError, TraceError
from kit.timeline.kineto import collector_paused, decode
from kit.timeline.merge import merge
from kit.timeline.record import Timeline
from kit.timeline.source import MAX_BYTES, read_bytes
from kit.timeline.steps import NO_MARKS, has_marks

_ENDINGS = (".json", ".json.gz")


def read(
    paths: str | Path | Iterable[str | Path],
    *,
    strict: bool = True,
    max_bytes: int = MAX_BYTES,
) -> Timeline:
    """Read a trace file, several (one a rank), or a folder of them.

    Reads the Kineto/Chrome JSON that `torch.profiler` writes, plain or gzip, of any version and device.
    Names that are no valid JSON are mended, counted and noted. `strict=False` also reads a file that breaks off,
    and drops and counts events that cannot be read. Of a folder, files that are no traces are noted and left out.
    `max_bytes` bounds what one file may unpack to. Raises `TraceError`, also when two files are of one rank, or when
    one of several does not say its rank. Cost: about 1 s of CPU for 100 MB of JSON.
    """
    files, in_folder = _files(paths)
    notes: list[str] = []
    timelines: list[Timeline] = []
    with progress.task("read traces", total=len(files)) as work:
        for file in files:
            try:
                timelines.append(read_file(file, strict=strict, max_bytes=max_bytes))
            except NoTraceError as error:
                if not in_folder:
                    raise
                notes.append(f"left out: {error}")
            work.advance(file.name)
    if not timelines:
        raise TraceError(
            f'{paths}: none of its {len(files)} files is a trace; expected JSON or JSON.gz with a list "traceEvents"'
        )
    timeline = merge(timelines)
    return replace(timeline, notes=(*timeline.notes, *notes))


def read_file(file: Path, *, rank: int | None = None, strict: bool = True, max_bytes: int = MAX_BYTES) -> Timeline:
    """Read one file as one rank; `rank` overrides what the file says of it."""
    raw, whole = read_bytes(file, max_bytes=max_bytes, strict=strict)
    decoded = decode(raw, file, strict=strict)
    del raw  # as big as the file, and no event refers to it
    with collector_paused():
        timeline = timeline_of(decoded, file, rank=rank, strict=strict)
    notes = [] if whole else [f"{file.name}: the gzip stream breaks off; what came before is read"]
    if not len(timeline):
        notes.append(f"{file.name}: no spans in the file")
    elif not has_marks(timeline, timeline.ranks[0]):
        notes.append(NO_MARKS)
    return replace(timeline, notes=(*timeline.notes, *notes))


def _files(paths: str | Path | Iterable[str | Path]) -> tuple[list[Path], bool]:
    """The files meant, and whether they were found in a folder (where strangers are tolerated)."""
    if not isinstance(paths, str | Path):
        return [Path(path) for path in paths], False
    path = Path(paths)
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.name.endswith(_ENDINGS) and file.is_file()), True
    if not path.exists():
        raise TraceError(f"{path}: no such file or folder; expected a trace in JSON or JSON.gz, or a folder of them")
    return [path], False
