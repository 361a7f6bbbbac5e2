import numpy as np
import pytest

from kit.graph.record import Kind
from kit.partition.constraints import contract
from kit.partition.loads import amounts, by_cluster, by_part, works


@pytest.fixture
def weighed(make_graph, row):
    def weigh(rows):
        graph = make_graph(rows)
        clusters = contract(graph)
        return graph, clusters, amounts(graph, clusters, np.arange(len(graph), dtype=float))

    return weigh


def test_memory_counts_a_storage_once_and_a_trained_parameter_four_times(weighed, row):
    _, _, found = weighed(
        [
            row(name="batch", kind=Kind.INPUT, nbytes=1000),
            row(name="w", kind=Kind.INPUT, parameter="w", nbytes=10),
            row(name="counter", kind=Kind.INPUT, parameter="counter", nbytes=8, shape="int64[]"),
            row(name="a", reads=["batch", "w", "counter"], nbytes=100),
            row(name="view", reads=["a"], kind=Kind.VIEW, alias="a", nbytes=100),
            row(name="relu_", reads=["view"], alias="a", writes="a", nbytes=100),
            row(name="b", reads=["relu_"], nbytes=50),
        ]
    )
    assert found.memory.tolist() == [0, 40, 8, 100, 0, 0, 50]
    assert found.parameters.tolist() == [0, 10, 8, 0, 0, 0, 0]


def test_only_nodes_that_compute_are_counted(weighed, row):
    graph, clusters, _ = weighed(
        [
            row(name="counter", kind=Kind.INPUT, parameter="counter"),
            row(name="add_", reads=["counter"], alias="counter", writes="counter"),
            row(name="constant"),
            row(name="a", reads=["constant"], target="aten.rand"),
            row(name="out", reads=["a"], kind=Kind.OUTPUT),
        ]
    )
    assert works(graph, clusters).tolist() == [False, True, False, True, False]


def test_a_shared_node_weighs_once_in_each_part_that_needs_it(weighed, row):
    _, clusters, found = weighed(
        [
            row(name="constant"),
            row(name="mask", reads=["constant"]),
            *(row(name=f"n{n}", reads=["mask"], target="aten.rand") for n in range(3)),
        ]
    )  # seconds are 0, 1, 2, 3, 4
    assert by_cluster(clusters, found.seconds).tolist() == [2, 3, 4]
    part_of_cluster = np.array([0, 0, 1], np.int32)
    parts = by_part(found.seconds, clusters=clusters, part_of_cluster=part_of_cluster, parts=2)
    assert parts.tolist() == [1 + 2 + 3, 1 + 4]
