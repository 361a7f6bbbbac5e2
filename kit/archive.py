"""Save and load records: a zip of one versioned JSON header and .npy columns.

One writer and one reader serve every record, because a record is a frozen dataclass of plain
fields. Nothing is unpickled: arrays are read with `allow_pickle=False`, the rest is typed JSON.
"""

import dataclasses
import importlib
import io
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

FORMAT = 1
MAX_COLUMN_BYTES = 8 << 30  # a header may not make a reader allocate without bound

# Kind in the header -> where its class lives. Loading names nothing outside this table.
RECORDS = {
    "Graph": "kit.graph.record",
    "Plan": "kit.step.record",
    "PassReport": "kit.step.passes.record",
    "Trials": "kit.step.passes.record",
    "Cut": "kit.partition.record",
    "Representations": "kit.step.start_record",
    "StartUp": "kit.step.start_record",
    "Timeline": "kit.timeline.record",
    "CollectiveLog": "kit.timeline.collective_log",
    "TuneReport": "kit.tuning.record",
    "Verdict": "kit.step.verdict_record",
    "Compatibility": "kit.step.verdict_record",
}


class ArchiveError(ValueError):
    """A file that is no saved record, or one of another format."""


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    kind: str
    fields: dict[str, msgspec.Raw]
    columns: list[str]


def save(record: Any, path: str | Path, *, level: int = 6) -> Path:
    """Write a record to `path` and return the path; the file appears whole or not at all.

    `level` is zlib's, 0 (large and quick) to 9.
    """
    kind = type(record).__name__
    if kind not in RECORDS:
        raise TypeError(f"save() got a {kind}; it takes a record: {', '.join(RECORDS)}")
    fields: dict[str, msgspec.Raw] = {}
    columns: dict[str, np.ndarray[Any, Any]] = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if isinstance(value, np.ndarray):
            columns[field.name] = value
        else:
            fields[field.name] = msgspec.Raw(msgspec.json.encode(value))
    header = _Header(format=FORMAT, kind=kind, fields=fields, columns=sorted(columns))
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    method = zipfile.ZIP_DEFLATED if level else zipfile.ZIP_STORED
    try:
        with zipfile.ZipFile(partial, "w", method, compresslevel=level) as archive:
            archive.writestr("header.json", msgspec.json.encode(header))
            for name, column in columns.items():
                buffer = io.BytesIO()
                np.save(buffer, column, allow_pickle=False)
                archive.writestr(f"{name}.npy", buffer.getvalue())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def load(path: str | Path) -> Any:
    """Read a record that `save` wrote.

    Raises `ArchiveError` naming the file, the place and what was expected.
    """
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            header = _read_header(archive, path)
            cls = getattr(importlib.import_module(RECORDS[header.kind]), header.kind)
            values: dict[str, Any] = {name: _read_column(archive, name, path) for name in header.columns}
            _fill_fields(cls, header, values, path)
    except zipfile.BadZipFile as error:
        raise ArchiveError(f"{path}: not a zip archive ({error}); expected a file written by kit.save") from error
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise ArchiveError(f"{path}: the fields do not make a {header.kind}: {error}") from error


def _read_header(archive: zipfile.ZipFile, path: Path) -> _Header:
    try:
        header = msgspec.json.decode(archive.read("header.json"), type=_Header)
    except KeyError as error:
        raise ArchiveError(f"{path}: no header.json inside; expected a file written by kit.save") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArchiveError(f"{path}: header.json: {error}") from error
    if header.format != FORMAT:
        raise ArchiveError(f"{path}: format {header.format}, this version reads format {FORMAT}; update the kit")
    if header.kind not in RECORDS:
        raise ArchiveError(f"{path}: holds a {header.kind!r}, expected one of {', '.join(RECORDS)}")
    return header


def _read_column(archive: zipfile.ZipFile, name: str, path: Path) -> np.ndarray[Any, Any]:
    entry = f"{name}.npy"
    try:
        seen = archive.getinfo(entry).file_size
        if seen > MAX_COLUMN_BYTES:
            raise ArchiveError(f"{path}: {entry} unpacks to {seen} bytes, at most {MAX_COLUMN_BYTES} are read")
        return np.load(io.BytesIO(archive.read(entry)), allow_pickle=False)  # type: ignore[no-any-return]
    except KeyError as error:
        raise ArchiveError(f"{path}: {entry} is missing, the header names it") from error
    except (ValueError, EOFError) as error:
        raise ArchiveError(f"{path}: {entry}: {error}") from error


def _fill_fields(cls: type, header: _Header, values: dict[str, Any], path: Path) -> None:
    """Decode the JSON fields by the types that the record declares."""
    types = {field.name: field.type for field in dataclasses.fields(cls)}
    for name, raw in header.fields.items():
        if name not in types:
            raise ArchiveError(f"{path}: field {name!r} is not of a {header.kind}; it has {', '.join(types)}")
        try:
            values[name] = msgspec.json.decode(raw, type=types[name])
        except msgspec.DecodeError as error:
            raise ArchiveError(f"{path}: field {name!r}: {error}") from error
