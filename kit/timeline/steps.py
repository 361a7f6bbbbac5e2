"""Cut a rank's time into training steps.

`ProfilerStep#n` marks are the best evidence, one for each `prof.step()`. Else the optimizer's own ranges serve
(two optimizers give two cuts a step), else launches of a CUDA graph. Without any of them the file is one window,
and that is said.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from kit.timeline.kinds import device_rows, rows_named
from kit.timeline.record import LAUNCH_CATEGORIES, Category, Timeline


class Mark(StrEnum):
    """What a step was cut at."""

    PROFILER = "ProfilerStep#"
    OPTIMIZER = "Optimizer.step#"
    GRAPH = "cudaGraphLaunch"
    NONE = "whole window"


_GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")
NO_MARKS = (
    "no step marks: prof.step() was called once after the loop, or never, so everything is one window. "
    "Call prof.step() at the end of every turn of the loop, with a schedule, or use kit.profile"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of one rank: the half-open window [start_ns, end_ns)."""

    rank: int
    name: str
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.start_ns


def steps(timeline: Timeline, rank: int, *, mark: Mark | None = None) -> tuple[Step, ...]:
    """The steps of one rank, cut at `mark`; None takes the best kind of mark that the rank has.

    A step ends with the last device event launched inside its mark's range; the next begins there, and the first
    begins with the first device event. On a CPU-only rank the mark's own range is the step. () when there is nothing
    to cut, or none of the marks that were asked for.
    """
    rows = np.arange(len(timeline))[timeline.rows_of(rank)]
    for kind in Mark if mark is None else (mark,):
        found = _window(timeline, rank, rows) if kind is Mark.NONE else _cut(timeline, rank, rows, kind)
        if found:
            return found
    return ()


def has_marks(timeline: Timeline, rank: int) -> bool:
    """Whether a rank has any mark that steps can be cut at."""
    rows = np.arange(len(timeline))[timeline.rows_of(rank)]
    return any(len(_marks(timeline, rows, kind)) for kind in Mark if kind is not Mark.NONE)


def _marks(timeline: Timeline, rows: NDArray[np.int64], kind: Mark) -> NDArray[np.int64]:
    prefixes = _GRAPH_LAUNCHES if kind is Mark.GRAPH else kind.value
    named = rows_named(timeline, (name.startswith(prefixes) for name in timeline.strings))[rows]
    category = timeline.category[rows]
    wanted = np.isin(category, LAUNCH_CATEGORIES) if kind is Mark.GRAPH else category == Category.ANNOTATION
    return rows[named & wanted]


def _cut(timeline: Timeline, rank: int, rows: NDArray[np.int64], kind: Mark) -> tuple[Step, ...]:
    marks = _marks(timeline, rows, kind)
    names = [timeline.strings[timeline.name[row]] for row in marks]
    begins, ends = timeline.start_ns[marks], timeline.start_ns[marks] + timeline.duration_ns[marks]
    if timeline.part(rank).cpu_only:
        return tuple(
            Step(rank=rank, name=name, start_ns=int(begin), end_ns=int(end))
            for name, begin, end in zip(names, begins, ends, strict=True)
        )
    device = rows[device_rows(timeline)[rows]]
    launch = rows[np.isin(timeline.category[rows], LAUNCH_CATEGORIES) & (timeline.correlation[rows] >= 0)]
    launch = launch[np.argsort(timeline.correlation[launch], kind="stable")]
    place = np.searchsorted(timeline.correlation[launch], timeline.correlation[device])
    place = np.minimum(place, max(0, len(launch) - 1))
    if not len(launch) or not len(device):
        return ()
    launched = timeline.correlation[launch][place] == timeline.correlation[device]
    launched_ns = np.where(launched, timeline.start_ns[launch][place], np.iinfo(np.int64).min)
    device_end = timeline.start_ns[device] + timeline.duration_ns[device]
    found, start = [], int(timeline.start_ns[device].min())
    for name, begin, end in zip(names, begins.tolist(), ends.tolist(), strict=True):
        inside = (launched_ns >= begin) & (launched_ns <= end)
        if inside.any() and (stop := int(device_end[inside].max())) > start:
            found.append(Step(rank=rank, name=name, start_ns=start, end_ns=stop))
            start = stop
    return tuple(found)


def _window(timeline: Timeline, rank: int, rows: NDArray[np.int64]) -> tuple[Step, ...]:
    counted = rows if timeline.part(rank).cpu_only else rows[device_rows(timeline)[rows]]
    if not len(counted):
        return ()
    end = timeline.start_ns[counted] + timeline.duration_ns[counted]
    start_ns, end_ns = int(timeline.start_ns[counted].min()), int(end.max())
    return (Step(rank=rank, name=Mark.NONE.value, start_ns=start_ns, end_ns=end_ns),)
