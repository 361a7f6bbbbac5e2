"""Layouts against paths counted by brute force, and the time they take."""

import itertools
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.graph.layout import lay_out, layers
from kit.graph.record import Graph, Kind, Phase

F, B, O = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER  # noqa: E741 - the letters of the picture


@st.composite
def _edges(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    n = draw(st.integers(1, 7))
    pairs = list(itertools.combinations(range(n), 2))
    return n, sorted(draw(st.sets(st.sampled_from(pairs)))) if pairs else []


def _longest(node: int, edges: list[tuple[int, int]]) -> int:
    return max((1 + _longest(a, edges) for a, b in edges if b == node), default=0)


@given(drawn=_edges())
def test_a_layer_is_the_longest_path(drawn: tuple[int, list[tuple[int, int]]]) -> None:
    n, edges = drawn
    ends = np.array(edges, np.int32).reshape(-1, 2)
    assert layers(n, ends[:, 0], ends[:, 1]).tolist() == [_longest(node, edges) for node in range(n)]


@given(drawn=_edges(), data=st.data())
def test_no_two_nodes_overlap_and_all_stand_inside_their_lane(
    make_graph: Callable[..., Graph], drawn: tuple[int, list[tuple[int, int]]], data: st.DataObject
) -> None:
    n, edges = drawn
    kinds = data.draw(st.lists(st.sampled_from([Kind.COMPUTE, Kind.COLLECTIVE, Kind.WAIT]), min_size=n, max_size=n))
    phases = sorted(data.draw(st.lists(st.sampled_from(list(Phase)), min_size=n, max_size=n)), key=[F, B, O].index)
    layout = lay_out(make_graph(edges, n=n, kinds=kinds, phases=phases))
    for a, b in itertools.combinations(range(n), 2):
        assert abs(layout.x[a] - layout.x[b]) >= 0.99 or abs(layout.y[a] - layout.y[b]) >= 0.99
    assert (layout.x - 0.5 >= layout.lane_left[layout.lane] - 1e-5).all()
    assert (layout.x + 0.5 <= layout.lane_right[layout.lane] + 1e-5).all()


def test_forward_runs_down_and_backward_up_beside_it(make_graph: Callable[..., Graph]) -> None:
    layout = lay_out(make_graph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)], phases=[F, F, F, B, B, B]))
    assert layout.y.tolist() == [0, 1, 2, 2, 1, 0]
    assert layout.lane_left[1] > layout.lane_right[0]


def test_a_wide_layer_goes_on_in_the_next_row(make_graph: Callable[..., Graph]) -> None:
    layout = lay_out(make_graph([(0, 6), (1, 6), (2, 6), (3, 6), (4, 6), (5, 6)]), wide=2)
    assert sorted(layout.y[:6].tolist()) == [0, 0, 1, 1, 2, 2]
    assert layout.y[6] == 3


def test_barycentres_undo_a_crossing(make_graph: Callable[..., Graph]) -> None:
    layout = lay_out(make_graph([(0, 3), (1, 2)]))
    assert (layout.x[0] < layout.x[1]) == (layout.x[3] < layout.x[2])


def test_a_gather_of_parameters_stands_just_above_its_reader(make_graph: Callable[..., Graph]) -> None:
    kinds = [Kind.COLLECTIVE, Kind.WAIT, *[Kind.COMPUTE] * 5]
    edges = [(0, 1), (1, 6), (2, 3), (3, 4), (4, 5), (5, 6)]
    layout = lay_out(make_graph(edges, kinds=kinds))
    assert layout.y.tolist() == [2, 3, 0, 1, 2, 3, 4]


def test_a_wait_stands_next_to_its_collective(make_graph: Callable[..., Graph]) -> None:
    kinds = [Kind.COMPUTE, Kind.COLLECTIVE, Kind.COLLECTIVE, Kind.WAIT, Kind.WAIT]
    layout = lay_out(make_graph([(0, 1), (0, 2), (1, 3), (2, 4)], kinds=kinds))
    assert layout.y[3] - layout.y[1] == layout.y[4] - layout.y[2] == 1


def test_parts_stand_side_by_side(make_graph: Callable[..., Graph]) -> None:
    layout = lay_out(make_graph([(0, 1), (1, 2), (2, 3)]), parts=[0, 0, 1, 1])
    assert layout.lane.tolist() == [0, 0, 1, 1]
    assert layout.y.tolist() == [0, 1, 0, 1]


def test_no_nodes_make_an_empty_layout(make_graph: Callable[..., Graph]) -> None:
    assert len(lay_out(make_graph([], n=0))) == 0


def test_a_width_of_zero_is_refused(make_graph: Callable[..., Graph]) -> None:
    with pytest.raises(ValueError, match="wide=0; expected at least 1 node side by side"):
        lay_out(make_graph([(0, 1)]), wide=0)


def test_fifty_thousand_nodes_are_laid_out_within_a_second(make_graph: Callable[..., Graph]) -> None:
    rng = np.random.default_rng(0)
    n = 50_000
    far = np.sort(rng.integers(0, n, (16_000, 2)), axis=1)
    edges = {(at, at + 1) for at in range(n - 1)} | {(int(a), int(b)) for a, b in far if a < b}
    graph = make_graph(sorted(edges), phases=[F] * 20_000 + [B] * 25_000 + [O] * 5_000)
    start = time.process_time()
    layout = lay_out(graph)
    assert time.process_time() - start < 1.0
    assert len(layout) == n
