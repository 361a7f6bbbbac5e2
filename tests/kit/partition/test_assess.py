import numpy as np
import pytest

from kit.graph.record import Kind
from kit.partition.assess import Request, assess, require_forward_edges
from kit.partition.constraints import contract
from kit.partition.loads import amounts
from kit.partition.record import Balance, CyclicCutError


@pytest.fixture
def judged(make_graph, row):
    """The Cut of a hand-made partition: u feeds all, v feeds the last."""

    def judge(part_of_cluster):
        graph = make_graph(
            [
                row(name="x", kind=Kind.INPUT),
                row(name="u", reads=["x"], nbytes=100),
                row(name="v", reads=["u"], nbytes=7, shape="int64[1]"),
                row(name="w", reads=["u", "v"], nbytes=30),
                row(name="y", reads=["u", "v", "w"]),
                row(name="out", reads=["y", "u"], kind=Kind.OUTPUT),
            ]
        )
        clusters = contract(graph)
        parts = max(part_of_cluster) + 1
        return assess(
            graph,
            clusters,
            part_of_cluster=np.array(part_of_cluster, np.int32),
            weights=amounts(graph, clusters, np.array([0, 1.0, 2, 3, 6, 0])),
            request=Request(
                parts=parts, balance=Balance.TIME, eps_asked=0.1, feasible_parts=1, order="given",
                optimal_for_order=False, modelled=False,
            ),
        )  # fmt: skip

    return judge


def test_a_value_counts_once_for_each_other_part_that_reads_it(judged):
    found = judged([0, 0, 1, 2])
    assert [(c.name, c.to_parts, c.bytes_sent) for c in found.crossings] == [
        ("u", (1, 2), 200),
        ("w", (2,), 30),
        ("v", (1, 2), 14),
    ]
    assert (found.bytes_crossing, found.bytes_crossing_with_gradients) == (244, 474)
    assert found.bytes_sent.tolist() == [214, 30, 0]
    assert found.bytes_received.tolist() == [0, 107, 137]


def test_edges_to_the_output_and_from_inputs_are_not_counted(judged):
    found = judged([0, 0, 1, 2])
    assert (found.edges_cut, found.edges) == (5, 6)


def test_the_floor_is_set_by_the_heaviest_node(judged):
    found = judged([0, 0, 0, 1])
    assert (found.floor_node, found.floor_share, found.floor_imbalance) == ("y", 0.5, 0.0)
    assert judged([0, 1, 1, 2]).floor_imbalance == 0.5


def test_an_input_and_the_output_have_a_part(judged):
    assert judged([0, 0, 1, 2]).part_of.tolist() == [0, 0, 0, 1, 2, 2]


def test_a_partition_with_an_edge_back_is_refused_with_its_nodes(judged):
    with pytest.raises(CyclicCutError) as caught:
        judged([0, 1, 0, 1])
    assert str(caught.value) == (
        "cut of 'made': edge v -> w goes from part 1 back to part 0; parts run in order, so parts must not "
        "decrease along an edge; use kit.cut, which only makes such cuts"
    )


def test_edges_within_a_part_and_forward_are_accepted(make_dag):
    require_forward_edges(make_dag([(0, 1), (1, 2)], [1, 1, 1]), np.array([0, 0, 1], np.int32))
