"""Read an Nsight Systems export (`nsys export --type=sqlite`) into the Timeline that a Kineto trace gives.

Streams, devices and correlations are CUPTI's numbers in both profilers, so they are kept as they are; kernels keep
their demangled names, calls lose the version that Nsight puts behind them (cudaLaunchKernel_v7000), copies are named
as Kineto names them. A graph that was recorded as a whole (graph-level tracing) is one row of `Category.GRAPH`.
Tables without events are absent in newer exports and empty in older ones (seen: exports of 2023 and 2025), so each
is asked for first. The database is someone else's: it is opened read-only, and only plain tables are read.
"""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from kit.timeline.error import NoTraceError, TraceError
from kit.timeline.exact import MOST_NS
from kit.timeline.nsys_rows import Processes
from kit.timeline.record import Category, Timeline

_COPIES = (
    "Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP",
    "Unified HtoD", "Unified DtoH", "Unified DtoD",
)  # fmt: skip
_MEMORIES = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
_SYNCS = ("Unknown sync", "Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync")
# Bounded: each row gets a copy, so one long text that many rows name would fill the memory.
_STRING = f"(SELECT substr(value, 1, {1 << 14}) FROM StringIds WHERE id = t.{{}})"
_ROWS_AT_ONCE = 1 << 13


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """One table: what its rows are, and SQL for the columns that have other names or may be absent.

    `name` is SQL over the row `t`; `thread` names the column of the process (and thread) that a row belongs to.
    """

    table: str
    category: Category
    name: str
    thread: str = "globalPid"
    where: str = ""
    needed: tuple[str, ...] = ()


def _label(labels: tuple[str, ...], column: str) -> str:
    cases = " ".join(f"WHEN {number} THEN '{label}'" for number, label in enumerate(labels))
    return f"CASE t.{column} {cases} ELSE 'Unknown' END"


_KERNEL_NAME = f"COALESCE({_STRING.format('demangledName')}, {_STRING.format('shortName')})"
_COPY_NAME = (
    f"'Memcpy ' || {_label(_COPIES, 'copyKind')} || ' (' || {_label(_MEMORIES, 'srcKind')} || ' -> ' || "
    f"{_label(_MEMORIES, 'dstKind')} || ')'"
)
_CALL = _STRING.format("nameId")
_IS_DRIVER = f"{_CALL} LIKE 'cu%' AND {_CALL} NOT LIKE 'cuda%'"

SOURCES = (
    _Source(table="CUPTI_ACTIVITY_KIND_KERNEL", category=Category.KERNEL, name=_KERNEL_NAME,
            needed=("demangledName", "shortName")),
    _Source(table="CUPTI_ACTIVITY_KIND_MEMCPY", category=Category.MEMCPY, name=_COPY_NAME,
            needed=("copyKind", "srcKind", "dstKind")),
    _Source(table="CUPTI_ACTIVITY_KIND_MEMSET", category=Category.MEMSET,
            name=f"'Memset (' || {_label(_MEMORIES, 'memKind')} || ')'", needed=("memKind",)),
    _Source(table="CUPTI_ACTIVITY_KIND_GRAPH_TRACE", category=Category.GRAPH,
            name="'CUDA graph ' || t.graphId", needed=("graphId",)),
    _Source(table="CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", category=Category.SYNC,
            name=_label(_SYNCS, "syncType"), needed=("syncType",)),
    _Source(table="CUPTI_ACTIVITY_KIND_RUNTIME", category=Category.RUNTIME, name=_CALL, thread="globalTid",
            where=f"NOT ({_IS_DRIVER})", needed=("nameId",)),
    _Source(table="CUPTI_ACTIVITY_KIND_RUNTIME", category=Category.DRIVER, name=_CALL, thread="globalTid",
            where=_IS_DRIVER, needed=("nameId",)),
    _Source(table="CUPTI_ACTIVITY_KIND_OVERHEAD", category=Category.OVERHEAD, name=_CALL, thread="globalTid",
            needed=("nameId",)),
    _Source(table="NVTX_EVENTS", category=Category.ANNOTATION, thread="globalTid",
            name=f"COALESCE(t.text, {_STRING.format('textId')})", where='t."end" IS NOT NULL',
            needed=("text", "textId")),
)  # fmt: skip
# Column of the record -> column of the export, where the table has it.
_OPTIONAL = {
    "device": "deviceId", "stream": "streamId", "correlation": "correlationId", "copied_bytes": "bytes",
    "cuda_graph": "graphId", "graph_node": "graphNodeId",
}  # fmt: skip


def read_nsys(file: Path, *, name: Path | None = None, rank: int | None = None, strict: bool = True) -> Timeline:
    """Read one export; `name` is the file that it was unpacked from.

    Nsight does not know ranks. Several processes that used a device become ranks in order of device; one takes `rank`,
    or the number in the name of the file, or stays unknown.
    Raises `TraceError` naming table and row for what cannot be read; `strict=False` drops and counts such rows.
    """
    name = name or file
    try:
        with closing(_open(file)) as database:
            tables = _tables(database)
            if "StringIds" not in tables or not any(source.table in tables for source in SOURCES):
                raise NoTraceError(
                    f"{name}: is a database without StringIds or any CUPTI_ACTIVITY or NVTX table; expected an export "
                    "of Nsight Systems (nsys export --type=sqlite)"
                )
            found = Processes(name, base_ns=_base_ns(database, tables))
            for source in SOURCES:
                if source.table in tables:
                    _read_table(database, source, tables[source.table], found, strict=strict)
            return found.timeline(rank)
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:  # the last: SQLite's own words quote the file
        raise TraceError(
            f"{name}: SQLite says {error}; expected an export of Nsight Systems. Export it again with "
            "nsys export --type=sqlite"
        ) from error


def _open(file: Path) -> sqlite3.Connection:
    # immutable: no lock, no journal, nothing written beside someone else's file.
    database = sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro&immutable=1", uri=True)
    database.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
    database.execute("PRAGMA trusted_schema = OFF")
    return database


def _tables(database: sqlite3.Connection) -> dict[str, set[str]]:
    """Plain tables and their columns; views and virtual tables of a stranger are left alone."""
    names = database.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
    ).fetchall()
    wanted = {"StringIds", "TARGET_INFO_SESSION_START_TIME", *(source.table for source in SOURCES)}
    found = [name for (name,) in names if name in wanted]
    return {name: {row[1] for row in database.execute(f'PRAGMA table_info("{name}")')} for name in found}


def _base_ns(database: sqlite3.Connection, tables: dict[str, set[str]]) -> int:
    """Wall clock of the session's start, which times are counted from; 0 when the export does not say."""
    if "utcEpochNs" not in tables.get("TARGET_INFO_SESSION_START_TIME", ()):
        return 0
    row = database.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    return row[0] if row and isinstance(row[0], int) and 0 <= row[0] < 1 << 62 else 0


def _read_table(
    database: sqlite3.Connection, source: _Source, columns: set[str], found: Processes, *, strict: bool
) -> None:
    missing = {"start", "end", *source.needed} - columns
    if missing:
        raise TraceError(
            f"{found.file}: table {source.table} has no column {', '.join(sorted(missing))}; expected the tables of "
            "Nsight Systems 2021 or later. Export the report again with a newer nsys"
        )
    optional = [f"t.{column}" if column in columns else "-1" for column in _OPTIONAL.values()]
    thread = f"t.{source.thread}" if source.thread in columns else "0"
    limit = MOST_NS - found.base_ns
    good = (
        "typeof(t.start) = 'integer' AND typeof(t.\"end\") = 'integer' AND t.\"end\" >= t.start "
        f'AND t.start > -{limit} AND t."end" < {limit}'
    )
    where = f"({source.where or '1'})"
    if (bad := _first_bad(database, source.table, f"{where} AND NOT ({good})")) is not None:
        if strict:
            raise TraceError(
                f"{found.file}: table {source.table}, row {bad[0]}: start {bad[1]!r}, end {bad[2]!r}; expected whole "
                "nanoseconds within 146 years with end >= start. strict=False reads the others"
            )
        found.dropped += bad[3]
    rows = database.execute(
        f'SELECT t.start, t."end", {source.name}, {thread}, {", ".join(optional)} '
        f"FROM {source.table} AS t WHERE {where} AND {good}"
    )
    names = ("start", "end", "name", "thread", *_OPTIONAL)
    while batch := rows.fetchmany(_ROWS_AT_ONCE):
        found.add(source.category, dict(zip(names, zip(*batch, strict=True), strict=True)))


def _first_bad(database: sqlite3.Connection, table: str, where: str) -> tuple[int, object, object, int] | None:
    row = database.execute(f'SELECT t.rowid, t.start, t."end" FROM {table} AS t WHERE {where} LIMIT 1').fetchone()
    if row is None:
        return None
    (count,) = database.execute(f"SELECT COUNT(*) FROM {table} AS t WHERE {where}").fetchone()
    return (*row, count)
