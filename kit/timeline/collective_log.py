"""The CollectiveLog record: which collectives each rank entered, in which order, without durations.

Flight recorders and debug logs say what was called, with which sizes and when it was enqueued; none of them says how
long it took (a watchdog sees completion up to 100 ms late, gloo never). So this is no Timeline, and no module may
make times of it. What it can answer: where ranks stopped agreeing.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kit.timeline.record import Group

Kind = Literal["flight recorder", "debug log"]
MessageKind = Literal["mismatch", "missing", "timeout", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a rank said of a group when it was dumped; -1 is unknown (NCCL without timing never knows the started)."""

    group: str
    last_enqueued: int = -1
    last_started: int = -1
    last_completed: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """What is known of one rank's file. `dropped` entries could not be read."""

    rank: int
    source: str
    kind: Kind
    version: str = ""
    status: tuple[Status, ...] = ()
    dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A line in which `rank` complains about `ranks`; `sequence` is -1 when it does not say at which collective."""

    rank: int
    kind: MessageKind
    text: str
    ranks: tuple[int, ...] = ()
    sequence: int = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveLog:
    """Collectives of one or more ranks, `n` rows in order of rank, then as the rank entered them.

    Columns of length n: `rank`; `sequence` (the number the group gave it; recorders count from 1, debug logs from
    0); `group` (id into `groups`); `name` (id into `strings`: "all_reduce"); `sizes_in`, `sizes_out` and `dtypes`
    (ids into `strings`, as text "[16]", "Float"; -1 unknown); `elements_in` (-1 unknown); `created_ns` (wall clock at
    which it was enqueued, for debug logs counted from 1 January as they say no year; -1 unknown); `completed_ns`
    (when completion was noticed, -1 never: no duration); `state` (id into `strings`, -1 unknown); `is_p2p` (1 for
    send and receive); `frame` (id into `strings` of the caller, "train.py:87", -1 unknown).
    """

    parts: tuple[LogPart, ...]
    strings: tuple[str, ...]
    groups: tuple[Group, ...]
    messages: tuple[Message, ...]
    notes: tuple[str, ...]
    rank: NDArray[np.int32]
    sequence: NDArray[np.int64]
    group: NDArray[np.int32]
    name: NDArray[np.int32]
    sizes_in: NDArray[np.int32]
    sizes_out: NDArray[np.int32]
    dtypes: NDArray[np.int32]
    elements_in: NDArray[np.int64]
    created_ns: NDArray[np.int64]
    completed_ns: NDArray[np.int64]
    state: NDArray[np.int32]
    is_p2p: NDArray[np.uint8]
    frame: NDArray[np.int32]

    def __post_init__(self) -> None:
        n = len(self.rank)
        for column in LOG_COLUMNS:
            seen = getattr(self, column)
            if seen.ndim != 1 or len(seen) != n or seen.dtype.kind not in "iu":
                raise ValueError(f"log column {column!r} is {seen.dtype} of shape {seen.shape}, expected {n} integers")
        for column, table, lowest in (
            ("name", self.strings, 0), ("group", self.groups, 0), ("sizes_in", self.strings, -1),
            ("sizes_out", self.strings, -1), ("dtypes", self.strings, -1), ("state", self.strings, -1),
            ("frame", self.strings, -1),
        ):  # fmt: skip
            ids = getattr(self, column)
            if n and not (lowest <= int(ids.min()) and int(ids.max()) < len(table)):
                raise ValueError(
                    f"log column {column!r} holds ids {ids.min()} to {ids.max()}, expected {lowest} to {len(table) - 1}"
                )
        if len(set(self.ranks)) != len(self.parts):
            raise ValueError(f"log has parts of ranks {list(self.ranks)}, expected each rank once")

    def __len__(self) -> int:
        return len(self.rank)

    def __repr__(self) -> str:
        ranks = ", ".join("unknown" if rank < 0 else str(rank) for rank in self.ranks)
        said = f", {len(self.messages)} messages" if self.messages else ""
        return f"CollectiveLog(rank {ranks}: {len(self)} collectives of {len(self.groups)} groups{said})"

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks in order; -1 stands for a rank that its file does not say."""
        return tuple(part.rank for part in self.parts)

    @property
    def sources(self) -> tuple[str, ...]:
        """The file of each rank."""
        return tuple(part.source for part in self.parts)

    def text(self, column: str, row: int) -> str:
        """The string that an id column holds in a row; "" when it holds none."""
        number = int(getattr(self, column)[row])
        return self.strings[number] if number >= 0 else ""


LOG_COLUMNS = (
    "rank", "sequence", "group", "name", "sizes_in", "sizes_out", "dtypes", "elements_in", "created_ns",
    "completed_ns", "state", "is_p2p", "frame",
)  # fmt: skip
