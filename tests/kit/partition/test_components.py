import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kit.partition.components import in_topological_order, strong_components


def reachable(count: int, edges: list[tuple[int, int]]) -> np.ndarray:
    """Warshall's closure, each node reaching itself."""
    reach = np.eye(count, dtype=bool)
    for a, b in edges:
        reach[a, b] = True
    for via in range(count):
        reach |= np.outer(reach[:, via], reach[via])
    return reach


def columns(edges: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    ends = np.array(edges, np.int32).reshape(-1, 2)
    return ends[:, 0], ends[:, 1]


graphs = st.integers(1, 9).flatmap(
    lambda n: st.tuples(
        st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=25, unique=True)
    )
)


@given(graphs)
def test_two_nodes_share_a_component_exactly_when_each_reaches_the_other(graph):
    count, edges = graph
    component = strong_components(count, *columns(edges))
    reach = reachable(count, edges)
    assert ((component[:, None] == component[None, :]) == (reach & reach.T)).all()


def test_a_chain_of_fifty_thousand_nodes_needs_no_recursion():
    edges = [(node, node + 1) for node in range(50_000)]
    assert len(set(strong_components(50_001, *columns(edges)).tolist())) == 50_001


@given(graphs)
def test_positions_follow_the_edges_of_an_acyclic_graph(graph):
    count, edges = graph
    forward = [(min(a, b), max(a, b)) for a, b in edges if a != b]
    forward = list(dict.fromkeys(forward))
    position = in_topological_order(np.arange(count), *columns(forward))
    assert sorted(position.tolist()) == list(range(count))
    assert all(position[a] < position[b] for a, b in forward)


def test_of_two_ready_nodes_the_one_of_lower_rank_comes_first():
    position = in_topological_order(np.array([5, 1, 3]), *columns([(1, 0)]))
    assert position.tolist() == [2, 0, 1]
