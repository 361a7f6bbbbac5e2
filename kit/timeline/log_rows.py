"""Entries of one rank on their way into a CollectiveLog, and logs of single ranks joined into one of all ranks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.timeline.collective_log import LOG_COLUMNS, CollectiveLog, LogPart, Message
from kit.timeline.fields import Ids
from kit.timeline.record import Group

_TEXTS = ("name", "sizes_in", "sizes_out", "dtypes", "state", "frame")
_WIDE = ("sequence", "elements_in", "created_ns", "completed_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One collective that one rank entered; texts are "" and numbers -1 when unknown."""

    sequence: int
    name: str
    group: Group
    sizes_in: str = ""
    sizes_out: str = ""
    dtypes: str = ""
    elements_in: int = -1
    created_ns: int = -1
    completed_ns: int = -1
    state: str = ""
    is_p2p: bool = False
    frame: str = ""


@dataclass(slots=True, kw_only=True)
class RankLog:
    """What one file says of one rank."""

    part: LogPart
    entries: list[Entry] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def log_of(ranks: Iterable[RankLog], notes: Sequence[str] = ()) -> CollectiveLog:
    """One CollectiveLog of all ranks, which have to be distinct."""
    logs = sorted(ranks, key=lambda log: log.part.rank)
    strings, groups = Ids(), Ids()
    entries = [(log.part.rank, entry) for log in logs for entry in log.entries]
    column: dict[str, NDArray[Any]] = {"rank": np.array([rank for rank, _ in entries], np.int32)}
    for name in LOG_COLUMNS[1:]:
        values = [getattr(entry, name) for _, entry in entries]
        if name in _TEXTS:
            column[name] = np.array([strings[value] if value else -1 for value in values], np.int32)
        elif name == "group":
            column[name] = groups.of(values)
        else:
            column[name] = np.array(values, np.int64 if name in _WIDE else np.uint8)
    return CollectiveLog(
        parts=tuple(log.part for log in logs),
        strings=tuple(strings),
        groups=tuple(groups),
        messages=tuple(message for log in logs for message in log.messages),
        notes=tuple(dict.fromkeys([*(note for log in logs for note in log.notes), *notes])),
        **column,
    )
