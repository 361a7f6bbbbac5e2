"""Read a flight-recorder dump of torch.distributed (NCCL or gloo, pickle or JSON) as one rank's log.

Seen: version 2.10 of torch 2.11 (NCCL) and 2.13 (gloo). The two forms differ: JSON has no frames and writes 0 where
the pickle has None. gloo names no group in pg_config (its key is ""), and leaves every entry "scheduled".
The dump does not say its rank; its file name does (`<prefix><rank>`, as torch writes it).
"""

import math
import re
from pathlib import Path
from typing import Any

import msgspec

from kit.timeline.collective_log import LogPart, Status
from kit.timeline.error import NoTraceError, TraceError
from kit.timeline.exact import as_int
from kit.timeline.fields import members
from kit.timeline.log_rows import Entry, RankLog
from kit.timeline.plain_pickle import load_plain
from kit.timeline.record import UNKNOWN_RANK, Group

_RANK = re.compile(r"(?:rank|worker|-r)[_\-]?(\d{1,6})(?!\d)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(\d{1,6})\Z")
_LIBRARY = re.compile(r"(?:^|/)(?:torch|site-packages)/")
_MOST_LISTED = 4
_MOST_DIMS = 64
Size = list[list[int]]


class _Frame(msgspec.Struct):
    name: str = ""
    filename: str = ""
    line: int = 0


class _Entry(msgspec.Struct):
    profiling_name: str
    collective_seq_id: int = 0
    p2p_seq_id: int = 0
    process_group: list[str] = []
    time_created_ns: int = -1
    time_discovered_completed_ns: int | None = None
    input_sizes: Size = []
    output_sizes: Size = []
    input_dtypes: list[str] = []
    state: str = ""
    is_p2p: bool = False
    frames: list[_Frame] = []


class _Dump(msgspec.Struct):
    version: str
    entries: list[Any]
    pg_config: dict[str, dict[str, Any]] = {}
    pg_status: dict[str, dict[str, Any]] = {}


def read_dump(raw: bytes, path: Path, *, strict: bool = True) -> RankLog:
    """One rank's log. Raises `TraceError` naming file and entry; `strict=False` drops entries that cannot be read.

    Raises `NoTraceError` for JSON that is something else.
    """
    if raw[:1] == b"\x80":
        found = load_plain(raw, path)
    else:
        try:
            found = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise NoTraceError(f"{path}: {error}; expected a flight-recorder dump") from error
    if not isinstance(found, dict) or not {"entries", "version"} <= found.keys():
        raise NoTraceError(f'{path}: has no "entries" and "version"; expected a flight-recorder dump')
    dump = _convert(found, _Dump, path, "")
    if dump.version.partition(".")[0] != "2":
        raise TraceError(f"{path}: flight recorder version {dump.version[:20]!r}, expected 2.x (torch 2.4 and later)")
    names = {name: _group(name, said) for name, said in dump.pg_config.items()}
    log = RankLog(part=LogPart(rank=UNKNOWN_RANK, source=str(path), kind="flight recorder", version=dump.version))
    dropped = 0
    for number, entry in enumerate(dump.entries):
        try:
            log.entries.append(_entry(_convert(entry, _Entry, path, f"entries[{number}]"), names))
        except TraceError as error:
            if strict:
                raise
            dropped += 1
            if dropped == 1:
                log.notes.append(f"{path.name}: entries were left out, the first: {error}")
    log.part = LogPart(
        rank=rank_of(path, log.notes),
        source=str(path),
        kind="flight recorder",
        version=dump.version,
        status=tuple(_status(name, said) for name, said in dump.pg_status.items()),
        dropped=dropped,
    )
    return log


def rank_of(path: Path, notes: list[str]) -> int:
    """The rank that a file's name says, -1 with a note when it says none."""
    found = _RANK.search(path.name) or _LAST_NUMBER.search(path.name.partition(".")[0])
    if found is None:
        notes.append(f"{path.name}: rank unknown: the file does not say it and its name ends in no number")
        return UNKNOWN_RANK
    return int(found[1])


def _convert(found: Any, kind: Any, path: Path, place: str) -> Any:
    try:
        return msgspec.convert(found, kind, strict=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise TraceError(
            f"{path}: {place}: {error}; expected what a flight recorder writes. strict=False reads the other entries"
        ) from error


def _group(name: str, said: dict[str, Any]) -> Group:
    return Group(name=name, description=str(said.get("desc") or ""), ranks=members(said.get("ranks")))


def _entry(entry: _Entry, groups: dict[str, Group]) -> Entry:
    name, description = (*entry.process_group[:2], "", "")[:2]
    known = groups.get(name)
    if known is None and len(groups) == 1 and "" in groups:  # gloo
        known = Group(name=name, description=description, ranks=groups[""].ranks)
    backend, _, called = entry.profiling_name.rpartition(":")
    return Entry(
        sequence=as_int(entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id),
        name=called or backend or "?",
        group=known or Group(name=name, description=description),
        sizes_in=_shapes(entry.input_sizes),
        sizes_out=_shapes(entry.output_sizes),
        dtypes=", ".join(dict.fromkeys(entry.input_dtypes[:_MOST_LISTED])),
        elements_in=_elements(entry.input_sizes),
        created_ns=as_int(entry.time_created_ns or -1),
        completed_ns=as_int(entry.time_discovered_completed_ns or -1),
        state=entry.state,
        is_p2p=entry.is_p2p,
        frame=_caller(entry.frames),
    )


def _elements(sizes: Size) -> int:
    if not sizes or any(len(size) > _MOST_DIMS for size in sizes):
        return -1
    return as_int(sum(math.prod(size) for size in sizes))


def _shapes(sizes: Size) -> str:
    """Shapes as text; of many only the first are listed, with their number."""
    listed = " ".join(str(size[:_MOST_DIMS]) for size in sizes[:_MOST_LISTED])
    return listed + (f" ... ({len(sizes)} tensors)" if len(sizes) > _MOST_LISTED else "")


def _caller(frames: list[_Frame]) -> str:
    """The innermost frame outside torch: the line that a person can change."""
    for frame in frames:
        if frame.filename and not _LIBRARY.search(frame.filename):
            return f"{Path(frame.filename).name}:{frame.line}"
    return ""


def _status(name: str, said: dict[str, Any]) -> Status:
    return Status(
        group=name,
        last_enqueued=as_int(said.get("last_enqueued_collective")),
        last_started=as_int(said.get("last_started_collective")),
        last_completed=as_int(said.get("last_completed_collective")),
    )
