import numpy as np
import pytest

from kit.graph.record import Kind
from kit.partition.constraints import contract


@pytest.fixture
def together(make_graph):
    """Names of the nodes of each cluster, in the order of the clusters."""

    def clusters(rows):
        graph = make_graph(rows)
        found = contract(graph)
        return [
            {name for name, cluster in zip(graph.names, found.cluster_of, strict=True) if cluster == number}
            for number in range(found.count)
        ]

    return clusters


def test_a_tuple_stays_with_the_nodes_that_take_it_apart(together, row):
    assert together(
        [
            row(name="x", kind=Kind.INPUT),
            row(name="topk", reads=["x"], is_tensor=False),
            row(name="first", reads=["topk"], kind=Kind.GETITEM),
            row(name="second", reads=["topk"], kind=Kind.GETITEM),
            row(name="y", reads=["first"]),
        ]
    ) == [{"topk", "first", "second"}, {"y"}]


def test_a_number_stays_with_its_maker_and_its_reader(together, row):
    assert together(
        [
            row(name="a"),
            row(name="b", reads=["a"], target="aten.rand.default"),
            row(name="item", reads=["b"], is_tensor=False),
            row(name="c", reads=["a", "b"]),
            row(name="scaled", reads=["c", "item"]),
        ]
    ) == [{"b", "item", "c", "scaled"}]


def test_a_size_of_the_batch_is_read_by_every_part_and_sent_by_none(make_graph, row):
    graph = make_graph(
        [
            row(name="x", kind=Kind.INPUT),
            row(name="size", reads=["x"], is_tensor=False),
            row(name="a", reads=["x"]),
            row(name="b", reads=["a", "size"]),
        ]
    )
    clusters = contract(graph)
    assert clusters.cluster_of.tolist() == [-1, -1, 0, 1]
    assert [graph.names[value] for value in clusters.value_rows] == ["a"]


def test_what_touches_a_mutated_storage_up_to_the_last_mutation_is_one_cluster(together, row):
    assert together(
        [
            row(name="x", kind=Kind.INPUT),
            row(name="a", reads=["x"]),
            row(name="view", reads=["a"], kind=Kind.VIEW, alias="a"),
            row(name="early", reads=["view"]),
            row(name="relu_", reads=["a"], alias="a", writes="a"),
            row(name="late", reads=["a"]),
            row(name="other", reads=["x"]),
        ]
    ) == [{"a", "view", "early", "relu_"}, {"late"}, {"other"}]


def test_a_counter_and_the_node_that_counts_are_one_cluster_that_nothing_else_joins(together, row):
    assert together(
        [
            row(name="counter", kind=Kind.INPUT, parameter="bn.num_batches", shape="int64[]"),
            row(name="add_", reads=["counter"], alias="counter", writes="counter"),
            row(name="y", target="aten.rand.default"),
        ]
    ) == [{"counter", "add_"}, {"y"}]


def test_a_cycle_that_merging_closes_is_one_cluster(together, row):
    # `end` must stay with the tuple, and m is read by `end` and reads from the tuple.
    assert together(
        [
            row(name="x", kind=Kind.INPUT),
            row(name="pair", reads=["x"], is_tensor=False),
            row(name="first", reads=["pair"], kind=Kind.GETITEM),
            row(name="m", reads=["first"]),
            row(name="aside", reads=["first"]),
            row(name="end", reads=["pair", "m"]),
        ]
    ) == [{"pair", "first", "m", "end"}, {"aside"}]


def test_constants_belong_to_every_part_that_reads_them(make_graph, row):
    graph = make_graph(
        [
            row(name="x", kind=Kind.INPUT),
            row(name="arange"),
            row(name="mask", reads=["arange"]),
            row(name="a", reads=["x", "mask"]),
            row(name="b", reads=["a", "mask"]),
        ]
    )
    clusters = contract(graph)
    holders = {
        graph.names[shared]: clusters.holders_of(number).tolist()
        for number, shared in enumerate(clusters.shared_rows.tolist())
    }
    assert clusters.cluster_of.tolist() == [-1, -1, -1, 0, 1]
    assert holders == {"x": [0], "arange": [0, 1], "mask": [0, 1]}


@pytest.mark.parametrize("target", ["aten.rand.default", "aten.bernoulli.p", "aten.dropout.default", "aten.randn_like"])
def test_random_numbers_are_no_constants(make_graph, row, target):
    graph = make_graph([row(name="noise", target=target), *(row(name=name, reads=["noise"]) for name in "ab")])
    assert contract(graph).cluster_of.tolist() == [0, 1, 2]


def test_a_view_of_a_parameter_goes_with_the_parameter_but_a_computation_on_it_does_not(make_graph, row):
    graph = make_graph(
        [
            row(name="weight", kind=Kind.INPUT, parameter="weight"),
            row(name="t", reads=["weight"], kind=Kind.VIEW, alias="weight"),
            row(name="normed", reads=["weight"]),
            row(name="y", reads=["t", "normed"]),
        ]
    )
    assert contract(graph).cluster_of.tolist() == [-1, -1, 0, 1]


def test_who_needs_one_of_two_tied_parameters_holds_both(make_graph, row):
    graph = make_graph(
        [
            row(name="token", kind=Kind.INPUT, parameter="token.weight"),
            row(name="head", kind=Kind.INPUT, parameter="head.weight", alias="token"),
            row(name="x", kind=Kind.INPUT),
            row(name="a", reads=["x", "token"]),
            row(name="b", reads=["a", "head"]),
        ]
    )
    clusters = contract(graph)
    assert [clusters.holders_of(n).tolist() for n in range(3)] == [[0, 1], [0, 1], [0]]


def test_the_output_belongs_to_no_cluster(make_graph, row):
    graph = make_graph([row(name="a", target="aten.rand.default"), row(name="out", reads=["a"], kind=Kind.OUTPUT)])
    assert contract(graph).cluster_of.tolist() == [0, -1]


def test_a_graph_without_edges_has_clusters_and_no_values(make_dag):
    clusters = contract(make_dag([], []))
    assert clusters.count == 0
    assert np.size(clusters.value_rows) == 0
