"""What a fusing compiler leaves of a graph, against kernels joined by hand."""

from dataclasses import replace

import numpy as np

from kit.graph.fusion import fused, one_by_one
from kit.graph.liveness import peak_bytes
from kit.graph.record import Kind

PRODUCT, SUM = "aten.mm.default", "aten.add.Tensor"


def priced(graph, *, moved):
    """`moved`: bytes of each row; matrix products get FLOPs, which is how they are known."""
    flops = np.array([1e3 if target == PRODUCT else 0.0 for target in graph.targets])
    return replace(graph, bytes_moved=np.array(moved, np.int64), flops=flops)


def layer(make_graph):
    """x -> product -> a -> b -> c -> product, and b is read again after the second product."""
    targets = ["x", PRODUCT, SUM, SUM, SUM, PRODUCT, SUM, "output"]
    kinds = [Kind.INPUT, *[Kind.COMPUTE] * 6, Kind.OUTPUT]
    edges = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (3, 6), (6, 7)]
    graph = make_graph(edges, targets=targets, kinds=kinds, bytes_out=[100] * 7 + [0])
    return priced(graph, moved=[0, 200, 200, 200, 200, 200, 300, 0])


def test_a_value_between_two_nodes_of_a_kernel_is_neither_written_nor_read(make_graph):
    lean, begins = fused(layer(make_graph))
    # a, b, c are one kernel: it reads the product and writes b, which is read later, and c. a stays in registers.
    assert lean.bytes_moved.tolist() == [0, 200, 100, 100, 100, 200, 300, 0]
    assert lean.bytes_out.tolist() == [100, 100, 0, 100, 100, 100, 100, 0]
    assert np.flatnonzero(begins).tolist() == [1, 2, 5, 6]


def test_node_by_node_each_node_is_a_kernel(make_graph):
    graph = layer(make_graph)
    same, begins = one_by_one(graph)
    assert same is graph
    assert np.flatnonzero(begins).tolist() == [1, 2, 3, 4, 5, 6]


def test_what_a_kernel_reads_twice_is_paid_once(make_graph):
    graph = make_graph([(0, 1), (0, 2), (1, 2), (2, 3)], kinds=[Kind.INPUT, *[Kind.COMPUTE] * 2, Kind.OUTPUT])
    lean, _ = fused(priced(replace(graph, bytes_out=np.array([50, 50, 50, 0])), moved=[0, 100, 150, 0]))
    assert lean.bytes_moved.tolist() == [0, 50, 50, 0]  # in: the input, out: the result


def test_what_becomes_of_the_input_of_a_value_that_is_never_written(make_graph):
    # product -> a (kept in registers) -> b far behind it: the product's result must live until b instead of a.
    targets = ["x", PRODUCT, SUM, "y", PRODUCT, SUM, "output"]
    kinds = [Kind.INPUT, Kind.COMPUTE, Kind.COMPUTE, Kind.INPUT, Kind.COMPUTE, Kind.COMPUTE, Kind.OUTPUT]
    sizes = [0, 8, 100, 0, 1, 1, 0]
    graph = make_graph([(0, 1), (1, 2), (2, 5), (3, 4), (4, 6), (5, 6)], targets=targets, kinds=kinds, bytes_out=sizes)
    graph = priced(graph, moved=[0, 8, 108, 0, 1, 101, 0])
    assert peak_bytes(graph) == 8 + 100  # of a and what it is made of
    lean, _ = fused(graph)
    assert lean.bytes_out.tolist() == [0, 8, 0, 0, 1, 1, 0]
    assert peak_bytes(lean) == 8 + 1 + 1  # and not 100, and not without the 8


def test_a_path_that_leaves_for_a_product_ends_the_kernel(make_graph):
    # a -> product -> c and a -> c: one kernel of a and c would have to run before and after the product.
    targets = ["x", SUM, PRODUCT, SUM, "output"]
    kinds = [Kind.INPUT, *[Kind.COMPUTE] * 3, Kind.OUTPUT]
    graph = make_graph([(0, 1), (1, 2), (1, 3), (2, 3), (3, 4)], targets=targets, kinds=kinds)
    graph = priced(graph, moved=[0, 8, 8, 12, 0])
    lean, begins = fused(graph)
    assert lean.bytes_moved.tolist() == graph.bytes_moved.tolist()
    assert np.flatnonzero(begins).tolist() == [1, 2, 3]


def test_views_and_items_of_a_list_stand_between_nodes_of_a_kernel(make_graph):
    # x -> list of two -> items -> view of one -> sum of both
    targets = ["x", "aten._foreach_add.List", "getitem", "getitem", "aten.view.default", SUM, "output"]
    kinds = [Kind.INPUT, Kind.COMPUTE, Kind.GETITEM, Kind.GETITEM, Kind.VIEW, Kind.COMPUTE, Kind.OUTPUT]
    graph = make_graph(
        [(0, 1), (1, 2), (1, 3), (3, 4), (2, 5), (4, 5), (5, 6)],
        targets=targets, kinds=kinds, bytes_out=[40, 0, 20, 20, 20, 20, 0], storage=[0, -1, 1, 2, 2, 3, -1],
    )  # fmt: skip
    lean, begins = fused(priced(graph, moved=[0, 80, 0, 0, 0, 60, 0]))
    assert lean.bytes_moved.tolist() == [0, 40, 0, 0, 0, 20, 0]
    assert lean.bytes_out.tolist() == [40, 0, 0, 0, 0, 20, 0]
    assert begins.sum() == 1
