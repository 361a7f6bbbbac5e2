"""Time on the device by any choice of: rank, step, phase, stream, group, kind, name, operator, module, line.

`kernels(timeline)` is HolisticTraceAnalysis's kernel breakdown (by kind, then by name); with `by=` it is every other
table of device time. Sums count each event in full, so rows of streams that overlap add up to more than the window.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.timeline.attribution import line_names, module_names, operator_names
from kit.timeline.kernel_kinds import event_kind, short_name
from kit.timeline.kinds import device_rows
from kit.timeline.launches import launch_of
from kit.timeline.phases import Phase, phase_of
from kit.timeline.record import Category, Timeline
from kit.timeline.rows import Measured
from kit.timeline.steps import Mark, steps


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """Device events of one key: how many, from how many launches, and how long they ran.

    `share` is of the device time of the same rank (all ranks when `by` leaves the rank out). A replay of a CUDA graph
    is one launch for all its events; `launches` leaves orphans out.
    """

    key: tuple[str, ...]
    events: int
    launches: int
    total_ns: int
    share: float
    mean_ns: int
    median_ns: int
    shortest_ns: int
    longest_ns: int


def kernels(timeline: Timeline, *, by: Sequence[str] = ("rank", "kind"), copies: bool = True) -> Measured[KernelRow]:
    """Device events grouped by `by`, most time first within a rank.

    `by`: any of `KEYS`. `copies=False` leaves copies and sets out. Raises `ValueError` for another key.
    """
    unknown = [key for key in by if key not in KEYS]
    if unknown or not by:
        raise ValueError(f"kernels() got by={list(by)}; expected some of {', '.join(KEYS)}")
    wanted = device_rows(timeline) if copies else timeline.category == Category.KERNEL
    rows = np.flatnonzero(wanted)
    if not len(rows):
        return Measured(name="kernels", rows=(), by=tuple(by), notes=timeline.notes)
    group, keys = group_by([KEYS[key](timeline)[rows] for key in by])
    found = _rows(timeline, rows, group, keys, by)
    order = sorted(found, key=lambda row: (row.key[by.index("rank")] if "rank" in by else "", -row.total_ns))
    return Measured(name="kernels", rows=tuple(order), by=tuple(by))


def group_by(labels: Sequence[NDArray[Any]]) -> tuple[NDArray[np.int64], list[tuple[str, ...]]]:
    """Number the distinct combinations of labels: a number for each row, and the combination of each number."""
    code = np.zeros(len(labels[0]), np.int64)
    tables = []
    for column in labels:
        values, ids = np.unique(column.astype(str), return_inverse=True)
        tables.append(values)
        code = code * len(values) + ids
    distinct, group = np.unique(code, return_inverse=True)
    keys = []
    for number in distinct.tolist():
        key: list[str] = []
        for values in reversed(tables):
            number, place = divmod(number, len(values))
            key.insert(0, str(values[place]))
        keys.append(tuple(key))
    return group, keys


def step_names(timeline: Timeline) -> NDArray[np.object_]:
    """For each row the step (of its rank) in which it starts, "" outside of all."""
    found = np.full(len(timeline), "", object)
    for rank in timeline.ranks:
        mine = timeline.rows_of(rank)
        start = timeline.start_ns[mine]
        for step in steps(timeline, rank):
            name = step.name if step.name != Mark.NONE else ""
            found[mine][(start >= step.start_ns) & (start < step.end_ns)] = name
    return found


def _rows(
    timeline: Timeline,
    rows: NDArray[np.int64],
    group: NDArray[np.int64],
    keys: list[tuple[str, ...]],
    by: Sequence[str],
) -> list[KernelRow]:
    took = timeline.duration_ns[rows]
    order = np.lexsort((took, group))
    count = np.bincount(group, minlength=len(keys))
    first = np.cumsum(count) - count
    total = np.add.reduceat(took[order], first)
    launch = launch_of(timeline)[rows]
    pairs = np.unique(np.stack([group[launch >= 0], launch[launch >= 0]]), axis=1)[0]
    launched = np.bincount(pairs, minlength=len(keys))
    whole = _whole(keys, total, by)
    return [
        KernelRow(
            key=key,
            events=int(count[n]),
            launches=int(launched[n]),
            total_ns=int(total[n]),
            share=float(total[n] / whole[n]) if whole[n] else 0.0,
            mean_ns=int(total[n] // count[n]),
            median_ns=int(took[order[first[n] + count[n] // 2]]),
            shortest_ns=int(took[order[first[n]]]),
            longest_ns=int(took[order[first[n] + count[n] - 1]]),
        )
        for n, key in enumerate(keys)
    ]


def _whole(keys: list[tuple[str, ...]], total: NDArray[np.int64], by: Sequence[str]) -> NDArray[np.int64]:
    """For each key the time of all keys of its rank."""
    ranks = np.array([key[by.index("rank")] if "rank" in by else "" for key in keys])
    _, place = np.unique(ranks, return_inverse=True)
    return np.bincount(place, weights=total.astype(np.float64)).astype(np.int64)[place]


def _by_table(words: Callable[[Timeline], list[str]], column: str) -> Callable[[Timeline], NDArray[Any]]:
    def labels(timeline: Timeline) -> NDArray[Any]:
        ids: NDArray[np.int64] = getattr(timeline, column)
        return np.array([*words(timeline), ""], object)[ids]

    return labels


def _kinds(timeline: Timeline) -> NDArray[Any]:
    pairs, place = np.unique(timeline.name.astype(np.int64) * 256 + timeline.category, return_inverse=True)
    return np.array([event_kind(timeline.strings[pair // 256], pair % 256) for pair in pairs.tolist()], object)[place]


def _streams(timeline: Timeline) -> NDArray[Any]:
    pairs = [
        f"{device}/{stream}" for device, stream in zip(timeline.device.tolist(), timeline.stream.tolist(), strict=True)
    ]
    return np.array(pairs, object)


KEYS: dict[str, Callable[[Timeline], NDArray[Any]]] = {
    "rank": lambda timeline: timeline.rank,
    "step": step_names,
    "phase": lambda timeline: np.array([phase.word for phase in Phase], object)[phase_of(timeline)],
    "stream": _streams,
    "group": _by_table(lambda timeline: [group.name for group in timeline.groups], "group"),
    "kind": _kinds,
    "name": _by_table(lambda timeline: [short_name(name) for name in timeline.strings], "name"),
    "full name": _by_table(lambda timeline: list(timeline.strings), "name"),
    "operator": operator_names,
    "module": module_names,
    "line": line_names,
}
