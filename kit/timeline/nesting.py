"""Which host range holds which: operators, calls, Python frames and annotations of one thread as a tree.

Nothing in a trace names the parent of a range; ranges of a thread nest by time. The depth of a range is the number of
ranges open at its start, and its parent the last earlier one that is one less deep: two sorted searches, no loop. A
thread whose ranges cross (clocks of Python frames and operators may differ by some ns) is walked with a stack.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kit.timeline.kinds import is_collective_work, rows_named
from kit.timeline.record import LAUNCH_CATEGORIES, Category, Timeline

HOST_CATEGORIES = (*LAUNCH_CATEGORIES, Category.CPU_OP, Category.ANNOTATION, Category.PYTHON)


@lru_cache(maxsize=2)  # as `launches.launch_of`
def parent_of(timeline: Timeline) -> NDArray[np.int64]:
    """For each row the row of the innermost host range of its thread that is open when it starts; -1 without one.

    Some files put Python frames on a thread of their own (pid 0): then they hold the operators of the thread that
    they cover.
    """
    parents = np.full(len(timeline), -1, np.int64)
    host = np.isin(timeline.category, HOST_CATEGORIES)
    host &= ~(
        (timeline.category == Category.ANNOTATION) & rows_named(timeline, map(is_collective_work, timeline.strings))
    )
    rows = np.flatnonzero(host)
    thread = _threads(timeline, rows)
    rows = rows[np.lexsort((rows, thread))]
    thread = np.sort(thread, kind="stable")
    edges = np.flatnonzero(np.diff(thread)) + 1
    for mine in np.split(rows, edges):
        found = _parents(timeline.start_ns[mine], timeline.duration_ns[mine])
        parents[mine] = np.where(found >= 0, mine[found], -1)
    parents.flags.writeable = False
    return parents


def enclosing(timeline: Timeline, rows: NDArray[np.int64], wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each of `rows` the innermost range around it (itself among them) for which `wanted` holds; -1 for none.

    Rows of -1 stay -1. `wanted` has one answer for each row of the timeline.
    """
    found = np.array(rows, np.int64)
    parents = parent_of(timeline)
    climbing = np.flatnonzero((found >= 0) & ~wanted[found])
    while len(climbing):
        found[climbing] = parents[found[climbing]]
        climbing = climbing[found[climbing] >= 0]
        climbing = climbing[~wanted[found[climbing]]]
    return found


def outermost(timeline: Timeline, rows: NDArray[np.int64], wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each of `rows` the outermost range around it (itself among them) for which `wanted` holds; -1 for none."""
    parents = parent_of(timeline)
    found = np.full(len(rows), -1, np.int64)
    at = np.array(rows, np.int64)
    climbing = np.flatnonzero(at >= 0)
    while len(climbing):
        here = at[climbing]
        found[climbing] = np.where(wanted[here], here, found[climbing])
        at[climbing] = parents[here]
        climbing = climbing[at[climbing] >= 0]
    return found


def _threads(timeline: Timeline, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The lane of each row, where a lane of Python frames alone takes the number of the operators' lane it covers."""
    lane = timeline.lane[rows].astype(np.int64)
    python = timeline.category[rows] == Category.PYTHON
    alone = np.setdiff1d(lane[python], lane[~python])
    bare = np.setdiff1d(lane[~python], lane[python])
    for frames in alone.tolist():
        mine = rows[lane == frames]
        first, last = (
            int(timeline.start_ns[mine].min()),
            int((timeline.start_ns[mine] + timeline.duration_ns[mine]).max()),
        )
        best, most = -1, 0
        for other in bare.tolist():
            theirs = rows[lane == other]
            if timeline.rank[theirs[0]] != timeline.rank[mine[0]]:
                continue
            inside = (timeline.start_ns[theirs] >= first) & (timeline.start_ns[theirs] < last)
            covered = int((inside & (timeline.category[theirs] == Category.CPU_OP)).sum())
            best, most = (other, covered) if covered > most else (best, most)
        if best >= 0:
            lane[lane == frames] = best
            bare = bare[bare != best]
    return lane


def _parents(start: NDArray[np.int64], duration: NDArray[np.int64]) -> NDArray[np.int64]:
    """Parents by position, of ranges sorted by start, a holder before what it holds."""
    count = len(start)
    end = start + np.maximum(duration, 1)  # a range without length is open at its own start
    depth = np.arange(count) - np.searchsorted(np.sort(end), start, side="right")
    key = depth * count + np.arange(count)
    order = np.argsort(key)
    place = np.searchsorted(key[order], key - count) - 1
    found = np.where((depth > 0) & (place >= 0), order[np.maximum(place, 0)], -1)
    nests = (depth <= 0) | ((found >= 0) & (depth[found] == depth - 1) & (end[found] > start))
    return found if bool(nests.all()) else _walked(start, end)


def _walked(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    found = np.full(len(start), -1, np.int64)
    stack: list[int] = []
    ends = end.tolist()
    for row, begin in enumerate(start.tolist()):
        while stack and ends[stack[-1]] <= begin:
            stack.pop()
        if stack:
            found[row] = stack[-1]
        stack.append(row)
    return found
