"""What the host does in given stretches of time: inside operators, by phase, or between them.

Between operators is Python, the data loader, or waiting; inside them is what a CUDA graph or a compiled step saves.
"""

import numpy as np
from numpy.typing import NDArray

from kit.timeline.attribution import attribute
from kit.timeline.intervals import Spans, covered, join, subtract, union
from kit.timeline.phases import Phase, phase_of
from kit.timeline.record import Category, Timeline

BETWEEN = "between operators"


def host_time(timeline: Timeline, rank: int, start: NDArray[np.int64], end: NDArray[np.int64]) -> dict[str, int]:
    """Nanoseconds of the stretches [start, end) of a rank by what its host does; they sum to the stretches' length.

    Where two threads are in operators of different phases, the later phase counts.
    """
    rows = np.arange(len(timeline))[timeline.rows_of(rank)]
    rows = rows[(timeline.category[rows] == Category.CPU_OP) & (attribute(timeline).outer[rows] == rows)]
    phase = phase_of(timeline)[rows]
    told: Spans = (np.empty(0, np.int64), np.empty(0, np.int64))
    found: dict[str, int] = {}
    for kind in reversed(Phase):
        mine = rows[phase == kind]
        spans = union(timeline.start_ns[mine], timeline.start_ns[mine] + timeline.duration_ns[mine])
        took = int(covered(subtract(spans, told), start, end).sum())
        told = join(told, spans)
        if took:
            found[f"in {kind.word} operators" if kind else "in operators"] = took
    rest = int((end - start).sum()) - sum(found.values())
    return {**found, **({BETWEEN: rest} if rest else {})}
