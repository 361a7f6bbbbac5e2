"""The lane of a rank's memory in the static picture: what was allocated, over time, up to its peak."""

from typing import Any

import numpy as np

from kit import colours
from kit.timeline.memory_counters import allocators
from kit.timeline.record import Timeline

MOST_POINTS = 2000  # a lane has fewer pixels than that
_HEIGHT = 0.8  # of a lane


def has_memory(timeline: Timeline) -> bool:
    """Whether memory was recorded, as by `kit.profile(..., memory=True)`."""
    return bool(len(timeline.memory_rank))


def draw_memory(
    axes: Any, timeline: Timeline, rank: int, bottom: float, *, zero_ns: int, shown: tuple[int, int], ink: str
) -> None:
    """Fill what was allocated on the rank's device with the largest peak, in the lane that begins at `bottom`.

    `shown`: nanoseconds (from, to) of the picture. Of each 1/2000 of it the most is drawn, so that no peak is lost.
    The peak of what is shown stands beside the lane; a rank of which nothing was recorded has an empty one.
    """
    allocated = np.maximum(timeline.memory_allocated_bytes, 0)
    mine = [used for used in allocators(timeline) if used.rank == rank]
    if not mine:
        return
    used = max(mine, key=lambda one: int(allocated[one.rows].max()))
    at, value = timeline.memory_at_ns[used.rows], allocated[used.rows]
    first, last = np.searchsorted(at, shown, side="right")
    first = max(first - 1, 0)  # what was there when the picture begins
    at, value = np.maximum(at[first:last], shown[0]), value[first:last]
    peak = int(value.max(initial=0))
    if peak:
        bins = (at - shown[0]) * MOST_POINTS // max(1, shown[1] - shown[0])
        begins = np.flatnonzero(np.append(True, bins[1:] != bins[:-1]))
        most = np.maximum.reduceat(value, begins)
        at_ms = (np.append(at[begins], shown[1]) - zero_ns) / 1e6
        heights = bottom + 0.1 + _HEIGHT * np.append(most, most[-1]) / peak
        axes.fill_between(at_ms, bottom + 0.1, heights, step="post", color=colours.OPERATOR_OF_HOST, linewidth=0)
        axes.step(at_ms, heights, where="post", color=ink, linewidth=0.6)
    axes.annotate(
        f"{used.device}: {peak / 2**20:.1f} MiB", (1.005, bottom + 0.5), xycoords=("axes fraction", "data"),
        va="center", color=ink, fontsize=8,
    )  # fmt: skip
