"""Rows of an Nsight export, collected process by process, and the ranks made of them.

Nsight packs a process and a thread into one number ("globalTid" is 24 bits of process above 24 bits of thread, the
host's id above them), and numbers launches (correlation) for each process anew: so a rank is one process.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.timeline.columns import CPU_ONLY, RANK_IN_NAME
from kit.timeline.exact import integers
from kit.timeline.fields import Ids
from kit.timeline.merge import merge
from kit.timeline.record import COLUMNS, DEVICE_CATEGORIES, UNKNOWN_RANK, Category, Lane, Part, Timeline

_VERSION = re.compile(r"_v\d+\Z")
_NUMBERS = ("device", "stream", "correlation", "copied_bytes", "cuda_graph", "graph_node")
_CALLS = (Category.RUNTIME, Category.DRIVER)


class Processes:
    """Collects rows and sorts them by process."""

    def __init__(self, file: Path, *, base_ns: int) -> None:
        self.file, self.dropped = file, 0
        self.base_ns = base_ns
        self._names, self._lanes = Ids(), Ids()
        self._batches: list[dict[str, NDArray[Any]]] = []

    def add(self, category: Category, rows: dict[str, tuple[Any, ...]]) -> None:
        """Add rows of one table: `start`, `end`, `name`, `thread` and the record's own column names."""
        count = len(rows["start"])
        start, end = np.array(rows["start"], np.int64), np.array(rows["end"], np.int64)
        strip = _VERSION.sub if category in _CALLS else _unchanged
        column: dict[str, NDArray[Any]] = {name: integers(rows[name]) for name in _NUMBERS}
        thread = integers(rows["thread"])
        on_device = category in DEVICE_CATEGORIES or category == Category.SYNC
        column |= {
            "start_ns": start + self.base_ns,
            "duration_ns": end - start,
            "name": self._names.of([strip("", str(name if name is not None else "?")) for name in rows["name"]]),
            "category": np.full(count, category, np.uint8),
            "process": thread >> 24,
        }
        pid, tid = (column["device"], column["stream"]) if on_device else ((thread >> 24) & 0xFFFFFF, thread & 0xFFFFFF)
        column["lane"] = self._lanes.of(list(zip(pid.tolist(), tid.tolist(), strict=True)))
        if category not in DEVICE_CATEGORIES:
            column["device"], column["stream"] = np.full((2, count), -1, np.int64)
        for name in ("cuda_graph", "graph_node"):
            column[name] = np.where(column[name] > 0, column[name], -1)
        self._batches.append(column)

    def timeline(self, rank: int | None) -> Timeline:
        """One Timeline, a rank for each process that used a device (or for all of them when none did)."""
        names = [*_NUMBERS, "start_ns", "duration_ns", "name", "category", "process", "lane"]
        table = {name: np.concatenate([b[name] for b in self._batches] or [np.empty(0, np.int64)]) for name in names}
        on_device = np.isin(table["category"], DEVICE_CATEGORIES)
        processes = np.unique(table["process"][on_device])
        if len(processes) < 2:  # whatever else ran (a launcher, a shell) has nothing that a rank would claim
            return self._one(table, self._rank(rank), cpu_only=not len(processes), notes=self._notes(table, rank))
        first = [int(table["device"][on_device & (table["process"] == process)].min()) for process in processes]
        chosen = processes[np.argsort(first, kind="stable")]
        parts = [
            self._one({name: table[name][table["process"] == process] for name in names}, number, cpu_only=False)
            for number, process in enumerate(chosen.tolist())
        ]
        whole = merge(parts)
        left = int((~np.isin(table["process"], chosen)).sum())
        notes = [
            f"{self.file.name}: Nsight does not know ranks; its {len(chosen)} processes with device work are taken as "
            f"ranks 0 to {len(chosen) - 1} in order of device",
            *([f"{self.file.name}: {left} rows of processes without device work were left out"] if left else []),
        ]
        return replace(whole, notes=(*whole.notes, *notes, *self._notes(table, 0)))

    def _rank(self, rank: int | None) -> int:
        if rank is not None:
            return rank
        found = RANK_IN_NAME.search(self.file.name)
        return int(found[1]) if found else UNKNOWN_RANK

    def _notes(self, table: dict[str, NDArray[Any]], rank: int | None) -> list[str]:
        notes = []
        name = self.file.name
        if rank is None:
            known = (
                "is taken from its name" if self._rank(None) != UNKNOWN_RANK else "is unknown (no rankN in its name)"
            )
            notes.append(f"{name}: Nsight does not know ranks; the rank {known}")
        graphs = int((table["category"] == Category.GRAPH).sum())
        if graphs:
            notes.append(
                f"{name}: {graphs} CUDA graph launches were recorded without their kernels and count as compute. "
                "Record with --cuda-graph-trace=node to see the kernels"
            )
        if self.dropped:
            notes.append(f"{name}: {self.dropped} rows without usable times were left out")
        if not np.isin(table["category"], DEVICE_CATEGORIES).any():
            notes.append(CPU_ONLY if len(table["name"]) else f"{name}: no events in the export")
        return notes

    def _one(
        self, table: dict[str, NDArray[Any]], rank: int, *, cpu_only: bool, notes: list[str] | None = None
    ) -> Timeline:
        order = np.lexsort((-table["duration_ns"], table["start_ns"]))
        count = len(order)
        column: dict[str, NDArray[Any]] = {
            name: table[name].take(order) if name in table else np.full(count, -1, np.int64) for name in COLUMNS
        }
        column |= {name: column[name].astype(np.int32) for name in ("device", "name", "lane", "group", "collective")}
        column |= {"rank": np.full(count, rank, np.int32), "category": column["category"].astype(np.uint8)}
        column["dtype"] = column["dtype"].astype(np.int32)
        return Timeline(
            parts=(
                Part(rank=rank, source=str(self.file), base_ns=self.base_ns, cpu_only=cpu_only, dropped=self.dropped),
            ),
            strings=tuple(self._names),
            lanes=tuple(Lane(rank=rank, pid=str(pid), tid=str(tid)) for pid, tid in self._lanes),
            groups=(),
            notes=tuple(notes or ()),
            **column,
        )


def _unchanged(_: str, name: str) -> str:
    return name
