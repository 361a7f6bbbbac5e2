"""What ranks compare of their graphs, by hand."""

import operator

import torch
from torch.fx import Graph, GraphModule

from kit.step.agreement import lines_of


def sums(second=operator.add, *, dropped=False):
    graph = Graph()
    x = graph.placeholder("x")
    first = graph.call_function(operator.add, (x, 1))
    if dropped:
        graph.erase_node(graph.call_function(operator.add, (x, x)))
    graph.output([graph.call_function(second, ([first, x], first))])
    return GraphModule(torch.nn.Module(), graph)


def test_nodes_that_were_dropped_are_no_difference():
    one, other = sums(), sums(dropped=True)
    assert [node.name for node in one.graph.nodes] != [node.name for node in other.graph.nodes]
    assert lines_of(one, {}) == lines_of(other, {})


def test_another_operator_is_a_difference():
    assert lines_of(sums(), {}) != lines_of(sums(operator.mul), {})
    assert len(lines_of(sums(), {})) == 4
