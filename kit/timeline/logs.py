"""Read what ranks left behind when a job hung: flight-recorder dumps and debug logs, of one rank or all.

Each file is known by its first bytes, not by its name. Several files of one rank are one rank's only when they say
the same (a dump in two forms) or complete each other (a dump and a log); anything else is two runs mixed up.
"""

from collections.abc import Iterable
from pathlib import Path

from kit import progress
from kit.timeline.collective_log import CollectiveLog
from kit.timeline.debug_log import is_debug_log, read_debug_log
from kit.timeline.error import NoTraceError, TraceError
from kit.timeline.flight_recorder import read_dump
from kit.timeline.log_rows import RankLog, log_of
from kit.timeline.record import UNKNOWN_RANK
from kit.timeline.source import files_of, read_bytes

MAX_LOG_BYTES = 256 << 20
_KINDS = "a flight-recorder dump (pickle or JSON) or a log with TORCH_DISTRIBUTED_DEBUG=DETAIL"


def read_log(
    paths: str | Path | Iterable[str | Path], *, strict: bool = True, max_bytes: int = MAX_LOG_BYTES
) -> CollectiveLog:
    """The collectives that each rank entered, from flight-recorder dumps and debug logs (files, or a folder of them).

    Dumps may be pickles (loaded without running anything: only plain data is accepted) or JSON, of NCCL or gloo, plain
    or gzip. Of a folder, files that are none of these are noted and left out. Raises `TraceError` naming file, place
    and expectation, also when two files of one rank disagree; `strict=False` leaves out what cannot be read, and says
    how much. The log has an order but no durations; `kit.explain_hang` says what it means.
    """
    files, in_folder = files_of(paths, endings=("",), expected=_KINDS)
    notes: list[str] = []
    found: list[RankLog] = []
    with progress.task("read logs", total=len(files)) as work:
        for file in files:
            try:
                found += read_log_file(file, strict=strict, max_bytes=max_bytes)
            except TraceError as error:
                if strict and not (in_folder and isinstance(error, NoTraceError)):
                    raise
                notes.append(f"left out: {error}")
            work.advance(file.name)
    if not found:
        raise TraceError(f"{paths}: none of its {len(files)} files is {_KINDS}" + "".join(f"; {n}" for n in notes[:3]))
    return log_of(_one_a_rank(found, notes, strict=strict), notes)


def read_log_file(file: Path, *, strict: bool = True, max_bytes: int = MAX_LOG_BYTES) -> list[RankLog]:
    """The logs in one file, one a rank. Raises `NoTraceError` when it is something else."""
    raw, is_whole = read_bytes(file, max_bytes=max_bytes, strict=strict)
    if not raw.strip():
        raise NoTraceError(f"{file}: is empty; expected {_KINDS}")
    if raw[:1] == b"\x80" or raw.lstrip()[:1] == b"{":
        logs = [read_dump(raw, file, strict=strict)]
    elif is_debug_log(raw):
        logs = read_debug_log(raw, file)
    else:
        raise NoTraceError(f"{file}: expected {_KINDS}")
    if not is_whole:
        logs[0].notes.append(f"{file.name}: the gzip stream breaks off; what came before is read")
    return logs


def _one_a_rank(found: list[RankLog], notes: list[str], *, strict: bool) -> list[RankLog]:
    """Join what belongs to the same rank."""
    unknown = [log.part.source for log in found if log.part.rank == UNKNOWN_RANK]
    if unknown and len(found) > 1:
        words = f"{', '.join(unknown)}: the rank is unknown, expected one rank a file. Name the files rank0, rank1, ..."
        if strict:
            raise TraceError(words)
        notes.append(f"left out: {words}")
        found = [log for log in found if log.part.rank != UNKNOWN_RANK]
    kept: dict[int, RankLog] = {}
    for log in sorted(found, key=_usefulness):
        first = kept.setdefault(log.part.rank, log)
        if first is log:
            continue
        if first.part.kind != log.part.kind:
            first.messages += log.messages
            notes.append(f"{Path(log.part.source).name}: of rank {log.part.rank} only the messages, its dump says more")
        elif _order(first) == _order(log):
            notes.append(f"left out: {Path(log.part.source).name} says the same as {Path(first.part.source).name}")
        else:
            words = (
                f"rank {log.part.rank} comes 2 times: {first.part.source}, {log.part.source}; expected one file a "
                "rank. Read the files of one run only"
            )
            if strict:
                raise TraceError(words)
            notes.append(f"left out: {words}")
    return list(kept.values())


def _usefulness(log: RankLog) -> tuple[int, bool, bool, str]:
    """Dumps before logs; those that name source lines first."""
    is_log = log.part.kind == "debug log"
    return log.part.rank, is_log, not any(entry.frame for entry in log.entries), log.part.source


def _order(log: RankLog) -> list[tuple[int, str, int]]:
    return [(entry.sequence, entry.name, entry.created_ns) for entry in log.entries]
