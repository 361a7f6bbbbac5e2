import numpy as np
import pytest

from kit.partition.chain import order_by_live_bytes
from kit.partition.constraints import contract


@pytest.fixture
def live_order(make_graph, row):
    """Names in the order by live bytes; nodes are (name, reads, bytes)."""

    def order(*nodes):
        graph = make_graph(
            [row(name=name, reads=reads, nbytes=nbytes, target="aten.rand") for name, reads, nbytes in nodes]
        )
        clusters = contract(graph)
        found = order_by_live_bytes(clusters, graph.bytes_out[clusters.value_rows])
        names = {int(cluster): name for cluster, name in zip(clusters.cluster_of, graph.names, strict=True)}
        return [names[cluster] for cluster in found.tolist()]

    return order


def test_a_branch_is_ended_before_the_next_begins(live_order):
    assert live_order(
        ("x", [], 1), ("a", ["x"], 90), ("b", ["x"], 90), ("a2", ["a"], 1), ("b2", ["b"], 1), ("end", ["a2", "b2"], 1)
    ) == ["x", "a", "a2", "b", "b2", "end"]


def test_the_last_reader_of_a_big_value_goes_before_a_cheaper_node(live_order):
    # Once `other` has run, `second` frees 50 bytes; until then it costs 4.
    assert live_order(
        ("big", [], 50), ("other", ["big"], 3), ("next", ["other"], 2), ("second", ["big"], 4),
        ("end", ["next", "second"], 1),
    ) == ["big", "other", "second", "next", "end"]  # fmt: skip


def test_every_order_follows_the_edges(make_dag):
    generator = np.random.default_rng(0)
    for _ in range(50):
        count = int(generator.integers(2, 30))
        edges = [(a, b) for a in range(count) for b in range(a + 1, count) if generator.random() < 0.15]
        graph = make_dag(edges, generator.integers(1, 100, count).tolist())
        clusters = contract(graph)
        order = order_by_live_bytes(clusters, graph.bytes_out[clusters.value_rows])
        position = np.argsort(order)
        assert sorted(order.tolist()) == list(range(clusters.count))
        for value, row in enumerate(clusters.value_rows.tolist()):
            assert (position[clusters.readers_of(value)] > position[clusters.cluster_of[row]]).all()
