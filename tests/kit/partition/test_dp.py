"""The search against brute force: every contiguous and every monotone assignment of small graphs."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.partition.chain import lay, order_by_live_bytes
from kit.partition.constraints import contract
from kit.partition.dp import cheapest, feasible_eps, parts_needed


def bytes_crossing(edges, nbytes, part_of) -> int:
    """A value once for each other part that reads it."""
    sent = {(a, part_of[b]) for a, b in edges if part_of[a] != part_of[b]}
    return sum(nbytes[a] for a, _ in sent)


def heaviest(loads, part_of, parts) -> float:
    return max(sum(load for load, part in zip(loads, part_of, strict=True) if part == p) for p in range(parts))


def contiguous(order, parts):
    """Every assignment whose parts are non-empty intervals of the order."""
    for inner in itertools.combinations(range(1, len(order)), parts - 1):
        starts = [0, *inner]
        part_of = [0] * len(order)
        for position, node in enumerate(order):
            part_of[node] = sum(start <= position for start in starts) - 1
        yield part_of


def monotone(edges, count, parts):
    """Every assignment in which no edge goes back."""
    for part_of in itertools.product(range(parts), repeat=count):
        if all(part_of[a] <= part_of[b] for a, b in edges):
            yield part_of


@st.composite
def dags(draw):
    count = draw(st.integers(2, 9))
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=14, unique=True))
    nbytes = draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    loads = draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))
    return edges, nbytes, loads, draw(st.integers(1, min(4, count)))


def chain_of(graph, loads, order=None, loads_of_shared=None):
    clusters = contract(graph)
    return lay(
        clusters,
        order=np.arange(clusters.count, dtype=np.int32) if order is None else order,
        loads=np.array(loads, float),
        loads_of_shared=np.zeros(len(clusters.shared_rows)) if loads_of_shared is None else loads_of_shared,
        bytes_of_values=graph.bytes_out[clusters.value_rows],
    )


def noisy(make_graph, row, edges, nbytes):
    """The graph of random nodes, so that those without inputs are no constants."""
    return make_graph(
        [
            row(name=f"n{node}", reads=[f"n{a}" for a, b in edges if b == node], nbytes=count, target="aten.rand")
            for node, count in enumerate(nbytes)
        ]
    )


@settings(max_examples=150, deadline=None)
@given(dags(), st.sampled_from([0.0, 0.1, 0.5, 3.0]), st.booleans())
def test_no_contiguous_cut_within_the_limit_crosses_fewer_bytes_or_is_more_even(make_graph, row, dag, eps, by_bytes):
    edges, nbytes, loads, parts = dag
    graph = noisy(make_graph, row, edges, nbytes)
    clusters = contract(graph)
    order = np.arange(len(nbytes), dtype=np.int32)
    if by_bytes:
        order = order_by_live_bytes(clusters, graph.bytes_out[clusters.value_rows])
    node_of_cluster = np.argsort(clusters.cluster_of)  # each node is a cluster here
    node_order = node_of_cluster[order].tolist()

    found = cheapest(chain_of(graph, np.array(loads)[node_of_cluster], order), parts=parts, eps=eps)

    limit = (1 + found.limit_eps) * sum(loads) / parts + 1e-9
    every = [
        (bytes_crossing(edges, nbytes, part_of), heaviest(loads, part_of, parts))
        for part_of in contiguous(node_order, parts)
    ]
    assert (found.bytes_crossing, found.heaviest) == min(cost for cost in every if cost[1] <= limit)
    assert len(set(found.starts.tolist())) == parts + 1, "no part is empty"


@settings(max_examples=60, deadline=None)
@given(dags())
def test_bytes_are_never_below_the_best_monotone_assignment(make_graph, row, dag):
    edges, nbytes, loads, parts = dag
    parts = min(parts, 3)
    nodes = min(len(nbytes), 7)
    edges = [(a, b) for a, b in edges if b < nodes]
    nbytes, loads, parts = nbytes[:nodes], [1] * nodes, min(parts, nodes)
    found = cheapest(chain_of(noisy(make_graph, row, edges, nbytes), loads), parts=parts, eps=0.4)
    limit = (1 + found.limit_eps) * sum(loads) / parts + 1e-9
    bound = min(
        bytes_crossing(edges, nbytes, part_of)
        for part_of in monotone(edges, nodes, parts)
        if heaviest(loads, part_of, parts) <= limit
    )
    assert found.bytes_crossing >= bound


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(1, 4), st.sampled_from([0.0, 0.05, 0.3]))
def test_a_tolerance_is_relaxed_to_the_first_step_that_a_cut_meets(make_graph, row, loads, parts, eps):
    parts = min(parts, len(loads))
    chain = chain_of(noisy(make_graph, row, [], [1] * len(loads)), loads)
    least = min(heaviest(loads, part_of, parts) for part_of in contiguous(range(len(loads)), parts))
    relaxed = feasible_eps(chain, parts=parts, eps=eps)
    mean = sum(loads) / parts
    assert least <= (1 + relaxed) * mean * (1 + 1e-8)
    assert relaxed == eps or least > (1 + relaxed - 0.01) * mean
    assert round((relaxed - eps) * 100, 6) % 1 == pytest.approx(0)


def test_a_value_read_by_three_parts_crosses_twice_however_often_each_reads_it(make_graph, row):
    edges = [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]
    chain = chain_of(noisy(make_graph, row, edges, [100] * 6), [1] * 6)
    assert cheapest(chain, parts=3, eps=0.0).bytes_crossing == 200


def test_of_cuts_with_equal_bytes_the_most_even_is_taken(make_graph, row):
    edges = [(node, node + 1) for node in range(9)]
    chain = chain_of(noisy(make_graph, row, edges, [8] * 10), [1] * 10)
    assert cheapest(chain, parts=2, eps=0.9).starts.tolist() == [0, 5, 10]


def test_what_several_positions_share_weighs_once_in_each_interval(make_graph, row):
    graph = make_graph(
        [row(name="constant"), *(row(name=f"n{n}", reads=["constant"], target="aten.rand") for n in range(4))]
    )
    chain = chain_of(graph, [1.0] * 4, loads_of_shared=np.array([10.0]))
    assert parts_needed(chain, limit=14) == 1
    assert parts_needed(chain, limit=13) == 2
    assert parts_needed(chain, limit=11) == 4
    assert parts_needed(chain, limit=10) == np.inf
    found = cheapest(chain, parts=2, eps=0.72)  # limit 12.04 = 1.72 x 14 / 2
    assert (found.starts.tolist(), found.heaviest) == ([0, 2, 4], 12.0)


def test_five_thousand_nodes_and_eight_parts_take_less_than_three_seconds(make_graph, row):
    count = 5200
    edges = [(node, node + 1) for node in range(count - 1)] + [(node, node + 9) for node in range(0, count - 9, 3)]
    graph = noisy(make_graph, row, edges, [7 + node % 13 for node in range(count)])
    started = time.process_time()
    found = cheapest(chain_of(graph, [1 + node % 5 for node in range(count)]), parts=8, eps=0.05)
    assert time.process_time() - started < 3.0
    assert found.limit_eps == 0.05
