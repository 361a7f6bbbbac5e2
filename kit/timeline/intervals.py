"""Unions of half-open integer intervals [start, end): the one tool under every measure of time.

Integers in, integers out: nothing is rounded, so parts that must sum to a whole do.
"""

import numpy as np
from numpy.typing import NDArray

Spans = tuple[NDArray[np.int64], NDArray[np.int64]]


def union(start: NDArray[np.int64], end: NDArray[np.int64]) -> Spans:
    """Disjoint, sorted intervals that cover the same points; empty intervals vanish, touching ones join."""
    kept = end > start
    start, end = start[kept], end[kept]
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.append(True, start[1:] > reach[:-1])
    last = np.append(first[1:], True)
    return start[first], reach[last]


def join(*spans: Spans) -> Spans:
    """The union of several unions."""
    return union(np.concatenate([s for s, _ in spans]), np.concatenate([e for _, e in spans]))


def intersect(left: Spans, right: Spans) -> Spans:
    """Points in both of two unions (as `union` returns them)."""
    return subtract(left, subtract(left, right))


def subtract(spans: Spans, taken: Spans) -> Spans:
    """Points of one union that are not in another."""
    if not len(spans[0]) or not len(taken[0]):
        return spans
    edges = np.unique(np.concatenate([*spans, *taken]))
    kept = _covers(spans, edges[:-1]) & ~_covers(taken, edges[:-1])
    return union(edges[:-1][kept], edges[1:][kept])


def length(spans: Spans) -> int:
    """Total length of a union."""
    return int((spans[1] - spans[0]).sum())


def clip(spans: Spans, start: int, end: int) -> Spans:
    """The part of a union inside [start, end)."""
    return union(np.maximum(spans[0], start), np.minimum(spans[1], end))


def covered(spans: Spans, start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each query [start, end) how much of it a union covers; 0 where end is not after start."""
    begins, ends = spans
    if not len(begins):
        return np.zeros(len(start), np.int64)
    before = np.concatenate([[0], np.cumsum(ends - begins)])

    def up_to(point: NDArray[np.int64]) -> NDArray[np.int64]:
        row = np.searchsorted(begins, point, side="right")
        beyond = np.where(row > 0, np.maximum(0, ends[np.maximum(row - 1, 0)] - point), 0)
        return before[row] - beyond

    return np.where(end > start, up_to(end) - up_to(start), 0)


def _covers(spans: Spans, points: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each point lies in a union."""
    row = np.searchsorted(spans[0], points, side="right") - 1
    return (row >= 0) & (points < spans[1][np.maximum(row, 0)])
