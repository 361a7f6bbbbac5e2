"""Hold two timelines against one another: before and after, eager and compiled, rank and rank.

Steps differ in number and length, so everything is a mean over the ranks and steps of each side. Work is matched by
structure, (phase, outermost operator), never by time or by name of a kernel, which changes with shapes and versions.
An operator on one side only stands with 0 on the other: that is what was added or went away.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kit.timeline.activity import activity
from kit.timeline.attribution import attribute, operator_names
from kit.timeline.intervals import length, subtract, union
from kit.timeline.kernel_table import group_by
from kit.timeline.kinds import communication_kernels, device_rows
from kit.timeline.launches import launch_of
from kit.timeline.measure import breakdown
from kit.timeline.phases import Phase, phase_of
from kit.timeline.recomputation import recomputing
from kit.timeline.record import COLUMNS, Category, Timeline
from kit.timeline.rows import Measured
from kit.timeline.steps import Mark, steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of one (phase, operator), a mean for each step and rank.

    `events` on the device (operators on a CPU-only rank), from `launches` calls; `time_ns` their time;
    `exposed_ns` the communication among it that no computing hides; `recomputed`: launches that repeat the forward.
    """

    events: float
    launches: float
    time_ns: float
    exposed_ns: float
    recomputed: float


NO_WORK = Work(events=0.0, launches=0.0, time_ns=0.0, exposed_ns=0.0, recomputed=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    """One (phase, operator) on both sides, each number a step and rank; `change_ns` is after - before."""

    phase: str
    operator: str
    events_before: float
    events_after: float
    launches_before: float
    launches_after: float
    before_ns: float
    after_ns: float
    change_ns: float
    exposed_before_ns: float
    exposed_after_ns: float
    recomputed_before: float
    recomputed_after: float


def changes(before: Timeline, after: Timeline) -> Measured[ChangeRow]:
    """Both timelines by phase and operator, the largest change of time first."""
    left, right = work_of(before), work_of(after)
    rows = []
    for key in left.keys() | right.keys():
        old, new = left.get(key, NO_WORK), right.get(key, NO_WORK)
        rows.append(
            ChangeRow(
                phase=key[0], operator=key[1],
                events_before=old.events, events_after=new.events,
                launches_before=old.launches, launches_after=new.launches,
                before_ns=old.time_ns, after_ns=new.time_ns, change_ns=new.time_ns - old.time_ns,
                exposed_before_ns=old.exposed_ns, exposed_after_ns=new.exposed_ns,
                recomputed_before=old.recomputed, recomputed_after=new.recomputed,
            )
        )  # fmt: skip
    rows.sort(key=lambda row: (-abs(row.change_ns), row.phase, row.operator))
    return Measured(name="changes", rows=tuple(rows), notes=_notes(before, after))


def compare_timelines(before: Timeline, after: Timeline, *, most: int = 12) -> list[tuple[str, str, str]]:
    """What differs a step and rank, as (what, before, after) in words: totals, then the `most` operators that changed.

    Empty when the two do the same in the same time. Times under a microsecond apart count as the same.
    """
    left, right = totals(before), totals(after)
    found = [
        (what, f"{left[what]:,.3f}", f"{right[what]:,.3f}") for what in left if abs(left[what] - right[what]) >= 1e-3
    ]
    changed = [
        row for row in changes(before, after) if abs(row.change_ns) >= 1e3 or row.events_before != row.events_after
    ]
    for row in changed[:most]:
        name = f"{row.phase}: {row.operator or '(no operator)'}"
        old, new = (_words(*side) for side in _sides(row))
        found.append((name, old, new))
    return found


def _sides(row: ChangeRow) -> tuple[tuple[float, float, float, float], tuple[float, float, float, float]]:
    return (
        (row.before_ns, row.events_before, row.launches_before, row.exposed_before_ns),
        (row.after_ns, row.events_after, row.launches_after, row.exposed_after_ns),
    )


def _words(time_ns: float, events: float, launches: float, exposed_ns: float) -> str:
    if not events:
        return "none"
    exposed = f", {exposed_ns / 1e6:.3f} ms exposed" if exposed_ns else ""
    return f"{time_ns / 1e6:.3f} ms, {events:,.0f} events, {launches:,.0f} launches{exposed}"


def totals(timeline: Timeline) -> dict[str, float]:
    """What a step of one rank is on average, by name; times in milliseconds."""
    parts, count = breakdown(timeline), _steps(timeline)
    work = work_of(timeline).values()
    return {
        "window ms": sum(p.window_ns for p in parts) / count / 1e6,
        "compute ms": sum(p.compute_ns for p in parts) / count / 1e6,
        "communication ms": sum(p.communication_ns for p in parts) / count / 1e6,
        "exposed communication ms": sum(p.exposed_communication_ns for p in parts) / count / 1e6,
        "exposed copy ms": sum(p.exposed_copy_ns for p in parts) / count / 1e6,
        "idle ms": sum(p.idle_ns for p in parts) / count / 1e6,
        "events": sum(w.events for w in work),
        "launches": sum(w.launches for w in work),
        "recomputed launches": sum(w.recomputed for w in work),
    }


def of_ranks(timeline: Timeline, *ranks: int) -> Timeline:
    """The part of a timeline that is of `ranks`, to compare two of them. `KeyError` for a rank that is not there."""
    parts = tuple(timeline.part(rank) for rank in sorted(ranks))
    kept = np.isin(timeline.rank, ranks)
    columns: dict[str, NDArray[np.int64]] = {name: getattr(timeline, name)[kept] for name in COLUMNS}
    return replace(timeline, parts=parts, **columns)  # type: ignore[arg-type]


def work_of(timeline: Timeline) -> dict[tuple[str, str], Work]:
    """Work by (phase, outermost operator), a mean for each step and rank."""
    rows = np.flatnonzero(_counted(timeline))
    if not len(rows):
        return {}
    phases = np.array([phase.word for phase in Phase], object)[phase_of(timeline)[rows]]
    group, keys = group_by([phases, operator_names(timeline)[rows]])
    count, launch = _steps(timeline), launch_of(timeline)[rows]
    roots = recomputing(timeline)
    again = roots[rows] >= 0
    heads = attribute(timeline).outer[(roots >= 0) & (roots == np.arange(len(timeline)))]
    calls = np.where(launch >= 0, launch, rows)  # an operator of the CPU is its own launch
    counted = (launch >= 0) | (timeline.category[rows] == Category.CPU_OP)
    talks = communication_kernels(timeline)[rows]
    found = {}
    for number, (phase, operator) in enumerate(keys):
        mine = group == number
        found[phase, operator] = Work(
            events=int(mine.sum()) / count,
            launches=len(np.unique(calls[mine & counted])) / count,
            time_ns=int(timeline.duration_ns[rows[mine]].sum()) / count,
            exposed_ns=_exposed(timeline, rows[mine & talks]) / count,
            recomputed=(len(np.unique(calls[mine & counted & again])) + int(np.isin(heads, rows[mine]).sum())) / count,
        )
    return found


def _counted(timeline: Timeline) -> NDArray[np.bool_]:
    """Device events; on CPU-only ranks the outermost operators."""
    host = np.isin(timeline.rank, [part.rank for part in timeline.parts if part.cpu_only])
    outer = attribute(timeline).outer == np.arange(len(timeline))
    counted: NDArray[np.bool_] = device_rows(timeline) | (host & outer & (timeline.category == Category.CPU_OP))
    return counted


def _exposed(timeline: Timeline, rows: NDArray[np.int64]) -> int:
    total = 0
    for rank in np.unique(timeline.rank[rows]).tolist():
        mine = rows[timeline.rank[rows] == rank]
        spans = union(timeline.start_ns[mine], timeline.start_ns[mine] + timeline.duration_ns[mine])
        total += length(subtract(spans, activity(timeline, rank).compute))
    return total


def _steps(timeline: Timeline) -> int:
    """Steps of all ranks together; a rank without marks counts as one."""
    return max(1, sum(max(1, len(steps(timeline, rank))) for rank in timeline.ranks))


def _notes(before: Timeline, after: Timeline) -> tuple[str, ...]:
    notes = []
    for side, timeline in (("before", before), ("after", after)):
        marked = [steps(timeline, rank) for rank in timeline.ranks]
        if any(found and found[0].name == Mark.NONE for found in marked):
            notes.append(f"{side}: no step marks, so its whole window counts as one step")
    return tuple(notes)
