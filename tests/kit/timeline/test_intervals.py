"""Oracle: sets of integer points."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kit.timeline import intervals
from kit.timeline.intervals import Spans, clip, intersect, join, length, subtract, union

INTERVALS = st.lists(st.tuples(st.integers(-20, 20), st.integers(0, 9)), max_size=12)


def points(intervals: list[tuple[int, int]]) -> set[int]:
    return {point for start, width in intervals for point in range(start, start + width)}


def made(intervals: list[tuple[int, int]]) -> Spans:
    start = np.array([start for start, _ in intervals], np.int64)
    return union(start, start + np.array([width for _, width in intervals], np.int64))


def covered(spans: Spans) -> set[int]:
    return {point for start, end in zip(*spans, strict=True) for point in range(start, end)}


@given(INTERVALS)
def test_a_union_covers_the_same_points_once_with_gaps_between(intervals: list[tuple[int, int]]) -> None:
    start, end = made(intervals)
    assert covered((start, end)) == points(intervals)
    assert length((start, end)) == len(points(intervals))
    assert (start[1:] > end[:-1]).all()


@given(INTERVALS, INTERVALS)
def test_join_intersect_and_subtract_are_those_of_sets(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    a, b = made(left), made(right)
    assert covered(join(a, b)) == points(left) | points(right)
    assert covered(intersect(a, b)) == points(left) & points(right)
    assert covered(subtract(a, b)) == points(left) - points(right)


@given(INTERVALS, st.integers(-25, 25), st.integers(0, 30))
def test_clip_keeps_the_points_inside(intervals: list[tuple[int, int]], start: int, width: int) -> None:
    assert covered(clip(made(intervals), start, start + width)) == points(intervals) & set(range(start, start + width))


def test_lengths_beyond_the_range_of_exact_floats_are_exact() -> None:
    start = np.array([2**60, 2**60 + 1], np.int64)
    assert length(union(start, start + 2**60 + 1)) == 2**60 + 2


def test_covered_is_the_length_of_each_query_inside_a_union() -> None:
    dice = np.random.default_rng(3)
    edges = np.sort(dice.choice(200, 20, replace=False)).astype(np.int64)
    spans = (edges[::2], edges[1::2])
    inside = np.zeros(220, np.int64)
    for begin, end in zip(*spans, strict=True):
        inside[begin:end] = 1
    start, end = dice.integers(0, 200, 300), dice.integers(0, 220, 300)
    found = intervals.covered(spans, start, end)
    assert found.tolist() == [int(inside[a:b].sum()) if b > a else 0 for a, b in zip(start, end, strict=True)]
    assert intervals.covered((spans[0][:0], spans[1][:0]), start, end).sum() == 0
