"""The Timeline record: what happened on every rank, as plain int64-nanosecond columns.

All ranks stand in one table, because every question worth asking (who waited for whom) crosses
ranks. Text is kept once in `strings` and rows hold ids, so a million events stay small. The record
needs neither torch nor the trace it came from.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Category(IntEnum):
    """What kind of event a row is; the numbers are part of the saved format and never change."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    RUNTIME = 3  # cuda_runtime, hip runtime: calls that launch
    DRIVER = 4
    CPU_OP = 5
    ANNOTATION = 6  # user_annotation: ranges of the host, step marks among them
    GPU_ANNOTATION = 7  # the device's echo of such a range: never a kernel
    PYTHON = 8
    OVERHEAD = 9
    SYNC = 10
    OTHER = 11
    GRAPH = 12  # a whole CUDA graph on the device, recorded without its kernels (Nsight's graph-level tracing)


DEVICE_CATEGORIES = (Category.KERNEL, Category.MEMCPY, Category.MEMSET, Category.GRAPH)
LAUNCH_CATEGORIES = (Category.RUNTIME, Category.DRIVER)
UNKNOWN_RANK = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A thread of the host or a stream of a device, as the file names it (`pid` and `tid` as text)."""

    rank: int
    pid: str
    tid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group. `ranks` is empty when the file does not list the members."""

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is known of one rank's part of a timeline.

    `rank` is -1 when the file does not say it. `base_ns` is the file's own zero (0 when its times are
    absolute): a row's time in the file is start_ns - base_ns. `world_size` is 0 when unknown.
    `dropped` rows could not be read, `mended` names were not valid JSON and were repaired.
    """

    rank: int
    source: str
    base_ns: int = 0
    world_size: int = 0
    backend: str = ""
    cpu_only: bool = False
    dropped: int = 0
    mended: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """Events of one or more ranks, `n` rows in order of rank, then start; a span comes before what it holds.

    Columns of length n:
    `rank`; `start_ns` (wall clock of the rank's host, file time plus base) and `duration_ns`;
    `name` (id into `strings`); `category` (a `Category`); `lane` (id into `lanes`);
    `device` and `stream` (-1 when none); `correlation` joins a launch call and what it launched (-1 none);
    `external` joins an operator and what it launched (-1 none); `sequence` joins a forward operator and
    its backward (-1 none);
    `group` (id into `groups`, -1 none), `collective` (id of its name in `strings`, -1 none),
    `elements_in`, `elements_out` (-1 unknown) and `dtype` (id into `strings`, -1) of a collective;
    `copied_bytes` of a copy or set (-1 unknown);
    `cuda_graph` and `graph_node` of what a CUDA graph ran: the executable graph and the node in it (-1 none or not
    said; Kineto's "graph id" and "graph node id", Nsight's graphId and graphNodeId).

    Columns of another length, one row a change of an allocator, in order of rank, then time (none unless memory was
    recorded): `memory_rank`, `memory_device` (-1 the host, else the device), `memory_lane` (the thread; -1 unknown),
    `memory_at_ns`, `memory_changed_bytes`, and the totals after it, `memory_allocated_bytes`, `memory_reserved_bytes`.

    `parts` has one entry a rank, in order of rank. `notes` says in words what a reader should know.
    """

    parts: tuple[Part, ...]
    strings: tuple[str, ...]
    lanes: tuple[Lane, ...]
    groups: tuple[Group, ...]
    notes: tuple[str, ...]
    rank: NDArray[np.int32]
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    name: NDArray[np.int32]
    category: NDArray[np.uint8]
    lane: NDArray[np.int32]
    device: NDArray[np.int32]
    stream: NDArray[np.int64]
    correlation: NDArray[np.int64]
    external: NDArray[np.int64]
    sequence: NDArray[np.int64]
    group: NDArray[np.int32]
    collective: NDArray[np.int32]
    elements_in: NDArray[np.int64]
    elements_out: NDArray[np.int64]
    dtype: NDArray[np.int32]
    copied_bytes: NDArray[np.int64]
    cuda_graph: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    graph_node: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    memory_rank: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    memory_device: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    memory_lane: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    memory_at_ns: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    memory_changed_bytes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    memory_allocated_bytes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    memory_reserved_bytes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def __post_init__(self) -> None:
        n = len(self.rank)
        for column in ("cuda_graph", "graph_node"):  # younger than the saved format: absent means none
            if not len(getattr(self, column)):
                object.__setattr__(self, column, np.full(n, -1, np.int64))
        for column in COLUMNS:
            seen = getattr(self, column)
            if seen.ndim != 1 or len(seen) != n or seen.dtype.kind not in "iu":
                raise ValueError(
                    f"timeline column {column!r} is {seen.dtype} of shape {seen.shape}, expected {n} integers"
                )
        for column in MEMORY_COLUMNS:
            seen = getattr(self, column)
            if seen.ndim != 1 or len(seen) != len(self.memory_rank) or seen.dtype.kind not in "iu":
                raise ValueError(
                    f"timeline column {column!r} is {seen.dtype} of shape {seen.shape}, expected "
                    f"{len(self.memory_rank)} integers"
                )
        for column, limit, lowest in (
            ("memory_lane", len(self.lanes), -1),
            ("name", len(self.strings), 0),
            ("category", len(Category), 0),
            ("lane", len(self.lanes), 0),
            ("group", len(self.groups), -1),
            ("collective", len(self.strings), -1),
            ("dtype", len(self.strings), -1),
        ):
            ids = getattr(self, column)
            if len(ids) and not (lowest <= int(ids.min()) and int(ids.max()) < limit):
                raise ValueError(
                    f"timeline column {column!r} holds ids {ids.min()} to {ids.max()}, expected {lowest} to {limit - 1}"
                )
        if len(set(self.ranks)) != len(self.parts):
            raise ValueError(f"timeline has parts of ranks {list(self.ranks)}, expected each rank once")
        seen = set(self.rank[np.flatnonzero(np.diff(self.rank, prepend=self.rank[:1] - 1))].tolist())
        if not seen <= set(self.ranks):
            raise ValueError(f"timeline rows are of ranks {sorted(seen)}, parts of {list(self.ranks)}")

    def __len__(self) -> int:
        return len(self.rank)

    def __repr__(self) -> str:
        ranks = ", ".join("unknown" if rank == UNKNOWN_RANK else str(rank) for rank in self.ranks)
        span = (int((self.start_ns + self.duration_ns).max()) - int(self.start_ns.min())) / 1e6 if len(self) else 0.0
        kind = "CPU-only" if self.cpu_only else f"{np.isin(self.category, DEVICE_CATEGORIES).sum()} on devices"
        said = f", {len(self.notes)} notes" if self.notes else ""
        return f"Timeline(rank {ranks}: {len(self)} events, {kind}, {span:.3f} ms{said})"

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks in order; -1 stands for a rank that its file does not say."""
        return tuple(part.rank for part in self.parts)

    @property
    def sources(self) -> tuple[str, ...]:
        """The file of each rank."""
        return tuple(part.source for part in self.parts)

    @property
    def cpu_only(self) -> bool:
        """Whether no rank has an event of a device."""
        return all(part.cpu_only for part in self.parts)

    def to_perfetto(self, path: str | Path) -> Path:
        """Write all ranks as Chrome JSON (gzip when the name ends in .gz) for https://ui.perfetto.dev; see `export`."""
        # Named, not imported: a record stands alone, and only who exports needs the exporter.
        written: Path = import_module("kit.timeline.export").write_perfetto(self, Path(path))
        return written

    def to_pandas(self) -> Any:
        """The columns as a `pandas.DataFrame`, ids as categories. Raises `ImportError` without pandas."""
        return import_module("kit.timeline.export").frame_of(self)

    def part(self, rank: int) -> Part:
        """What is known of one rank; `KeyError` lists the ranks there are."""
        for part in self.parts:
            if part.rank == rank:
                return part
        raise KeyError(f"rank {rank} is not in this timeline; it has {list(self.ranks)}")

    def explain(self) -> Any:
        """Where the time went: at most five findings, most seconds lost first, each with evidence, place and advice.

        The `Diagnosis` shows itself in a notebook and in `print`. The rules are in `kit.timeline.diagnosis`, found by
        name so that the record imports nothing of the kit.
        """
        return import_module("kit.timeline.diagnosis.explain").explain(self)

    def rows_of(self, rank: int) -> slice:
        """Rows of one rank: they lie together."""
        self.part(rank)
        first, last = np.searchsorted(self.rank, [rank, rank + 1])
        return slice(int(first), int(last))


COLUMNS = (
    "rank", "start_ns", "duration_ns", "name", "category", "lane", "device", "stream", "correlation",
    "external", "sequence", "group", "collective", "elements_in", "elements_out", "dtype", "copied_bytes",
    "cuda_graph", "graph_node",
)  # fmt: skip
MEMORY_COLUMNS = (
    "memory_rank", "memory_device", "memory_lane", "memory_at_ns", "memory_changed_bytes", "memory_allocated_bytes",
    "memory_reserved_bytes",
)  # fmt: skip
