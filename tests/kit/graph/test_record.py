"""What the Graph record refuses and derives."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kit.archive import load, save
from kit.graph.record import Graph, Kind, Phase


def test_an_edge_that_runs_backwards_is_refused(make_graph: Callable[..., Graph]) -> None:
    good = make_graph([(0, 1), (1, 2)])
    with pytest.raises(ValueError, match=r"edge 2 -> 1 runs backwards"):
        replace(good, edge_from=np.array([0, 2], np.int32), edge_to=np.array([1, 1], np.int32))


def test_all_writes_of_a_node_are_listed_in_order(make_graph: Callable[..., Graph]) -> None:
    graph = replace(make_graph([(0, 2), (1, 2)]), mutates=np.array([-1, -1, 0], np.int32), also_mutates=((2, 1),))
    assert graph.writes == ((2, 0), (2, 1))


def test_counts_name_every_phase(make_graph: Callable[..., Graph]) -> None:
    graph = make_graph([(0, 1)], phases=[Phase.FORWARD, Phase.BACKWARD])
    assert graph.count_by_phase() == {Phase.FORWARD: 1, Phase.BACKWARD: 1, Phase.OPTIMIZER: 0}


def test_a_graph_comes_back_from_a_file_as_it_was(make_graph: Callable[..., Graph], tmp_path: Path) -> None:
    graph = replace(make_graph([(0, 1)], kinds=[Kind.INPUT, Kind.COMPUTE]), also_mutates=((1, 3),))
    back = load(save(graph, tmp_path / "graph.kit"))
    assert back.also_mutates == ((1, 3),)
    assert back.kinds == graph.kinds
    assert back.edge_to.tolist() == [1]
