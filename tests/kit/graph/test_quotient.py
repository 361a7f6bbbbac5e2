"""Groups without cycles, checked by following every path."""

import itertools
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.graph.quotient import join_segments, segments, topological_order


@st.composite
def _keyed(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]], list[int]]:
    n = draw(st.integers(1, 8))
    pairs = list(itertools.combinations(range(n), 2))
    edges = sorted(draw(st.sets(st.sampled_from(pairs)))) if pairs else []
    return n, edges, draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))


def _ends(edges: list[tuple[int, int]]) -> tuple[Any, Any]:
    ends = np.array(edges, np.int64).reshape(-1, 2)
    return ends[:, 0], ends[:, 1]


def _has_cycle(edges: set[tuple[int, int]]) -> bool:
    """By growing paths until nothing new is reached."""
    reached = set(edges)
    while True:
        longer = reached | {(a, d) for a, b in reached for c, d in edges if b == c}
        if longer == reached:
            return any(a == b for a, b in reached)
        reached = longer


def _between(group: list[int], edges: list[tuple[int, int]]) -> set[tuple[int, int]]:
    return {(group[a], group[b]) for a, b in edges if group[a] != group[b]}


def _joined(n: int, edges: list[tuple[int, int]], keys: list[int]) -> list[int]:
    split = segments(np.array(keys), np.arange(n), *_ends(edges))
    key_of = np.zeros(int(split.max()) + 1, np.int64)
    key_of[split] = keys
    result: list[int] = join_segments(split, key_of, _between(split.tolist(), edges)).tolist()
    return result


@settings(max_examples=300)
@given(keyed=_keyed())
def test_segments_run_in_their_order_and_keep_keys_apart(keyed: tuple[int, list[tuple[int, int]], list[int]]) -> None:
    n, edges, keys = keyed
    group = segments(np.array(keys), np.arange(n), *_ends(edges)).tolist()
    assert all(a < b for a, b in _between(group, edges))
    assert all(keys[i] == keys[j] for i in range(n) for j in range(n) if group[i] == group[j])


@settings(max_examples=300)
@given(keyed=_keyed())
def test_joined_segments_have_no_cycle_and_cannot_be_joined_further_in_a_row(
    keyed: tuple[int, list[tuple[int, int]], list[int]],
) -> None:
    n, edges, keys = keyed
    group = _joined(n, edges, keys)
    between = _between(group, edges)
    assert not _has_cycle(between)
    assert all(a < b for a, b in between)
    assert all(keys[i] == keys[j] for i in range(n) for j in range(n) if group[i] == group[j])


def test_segments_that_need_not_be_apart_are_joined() -> None:
    # 0 and 2 have one key; 2 waits for 1, which does not depend on 0.
    assert len(set(_joined(3, [(1, 2)], [7, 8, 7]))) == 2


def test_a_residual_addition_stays_apart_from_the_block_around_it() -> None:
    # input -> norm -> add, input -> add: the key of input and add is the block, norm stands between.
    assert len(set(_joined(3, [(0, 1), (1, 2), (0, 2)], [0, 1, 0]))) == 3


def test_a_topological_order_takes_the_lowest_free_row_first() -> None:
    order = topological_order(np.arange(4), *_ends([(3, 0), (2, 1)]))
    assert order is not None
    assert order.tolist() == [2, 1, 3, 0]


def test_a_cycle_has_no_topological_order() -> None:
    assert topological_order(np.arange(2), *_ends([(0, 1), (1, 0)])) is None
