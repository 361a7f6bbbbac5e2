"""Join records of single ranks into one Timeline of all ranks."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.timeline.error import TraceError
from kit.timeline.record import COLUMNS, MEMORY_COLUMNS, UNKNOWN_RANK, Part, Timeline

_TABLES = {
    "name": "strings", "collective": "strings", "dtype": "strings", "lane": "lanes", "group": "groups",
    "memory_lane": "lanes",
}  # fmt: skip
_MOST_LISTED = 12


def merge(timelines: Iterable[Timeline]) -> Timeline:
    """One Timeline of all ranks, in order of rank.

    Raises `TraceError` when two records claim the same rank, or when one of several does not know its rank.
    """
    timelines = sorted(timelines, key=lambda timeline: timeline.ranks)
    parts = tuple(part for timeline in timelines for part in timeline.parts)
    if not parts:
        raise TraceError("merge() got no timeline; expected one for each rank")
    _require_distinct(parts)
    if len(timelines) == 1:
        return replace(timelines[0], notes=_notes(timelines, parts))
    tables, maps = _join_tables(timelines)
    columns: dict[str, Any] = {}
    for column in (*COLUMNS, *MEMORY_COLUMNS):
        pieces = []
        for timeline, moved in zip(timelines, maps, strict=True):
            values = getattr(timeline, column)
            pieces.append(_renumber(values, moved[_TABLES[column]]) if column in _TABLES else values)
        columns[column] = np.concatenate(pieces)
    for ranks, names in (("rank", COLUMNS), ("memory_rank", MEMORY_COLUMNS)):
        if np.any(np.diff(columns[ranks]) < 0):  # records of several ranks each: they interleave
            order = np.argsort(columns[ranks], kind="stable")
            columns |= {column: columns[column][order] for column in names}
    return Timeline(
        parts=tuple(sorted(parts, key=lambda part: part.rank)),
        notes=_notes(timelines, parts),
        **tables,
        **columns,
    )


def _notes(timelines: Iterable[Timeline], parts: Sequence[Part]) -> tuple[str, ...]:
    notes = [note for timeline in timelines for note in timeline.notes if not note.startswith("ranks missing")]
    return (*dict.fromkeys(notes), *_missing(parts))


def _require_distinct(parts: Sequence[Part]) -> None:
    if len(parts) > 1:
        unknown = [part.source for part in parts if part.rank == UNKNOWN_RANK]
        if unknown:
            raise TraceError(
                f"{', '.join(unknown)}: the rank is unknown, expected one rank a file (distributedInfo.rank, or rankN "
                "in the name). Name the files rank0.json, rank1.json, ... or read one alone"
            )
    for rank, count in Counter(part.rank for part in parts).items():
        if count > 1:
            sources = ", ".join(part.source for part in parts if part.rank == rank)
            raise TraceError(
                f"rank {rank} comes {count} times: {sources}; expected one file a rank. Read the files of one run only"
            )


def _join_tables(timelines: list[Timeline]) -> tuple[dict[str, Any], list[dict[str, NDArray[np.int32]]]]:
    joined: dict[str, dict[Any, int]] = {"strings": {}, "lanes": {}, "groups": {}}
    maps = [
        {
            table: np.array([ids.setdefault(entry, len(ids)) for entry in getattr(timeline, table)], np.int32)
            for table, ids in joined.items()
        }
        for timeline in timelines
    ]
    return {table: tuple(ids) for table, ids in joined.items()}, maps


def _renumber(ids: NDArray[Any], moved: NDArray[np.int32]) -> NDArray[Any]:
    return np.where(ids >= 0, np.append(moved, -1)[ids], -1).astype(ids.dtype)


def _missing(parts: Sequence[Part]) -> tuple[str, ...]:
    """A word on ranks that the files say exist and that were not given."""
    world_size = max(part.world_size for part in parts)
    known = {part.rank for part in parts}
    absent = world_size - sum(0 <= rank < world_size for rank in known)
    if absent <= 0 or UNKNOWN_RANK in known:
        return ()
    # Only as many as are listed: a file may claim any world size.
    first = list(itertools.islice((rank for rank in range(world_size) if rank not in known), _MOST_LISTED))
    listed = ", ".join(map(str, first)) + (", ..." if absent > len(first) else "")
    return (f"ranks missing: {absent} of {world_size} ({listed}); waiting for them cannot be seen",)
