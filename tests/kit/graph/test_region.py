"""What kernels move, worked out by hand on a graph that real torch captured. A float32 of [8, 16] has 512 bytes."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from kit.graph.from_fx import graph_of
from kit.graph.region import region_cost, rows_named


def record_of(function, *inputs):
    return graph_of(make_fx(function, tracing_mode="fake")(*inputs), name="test")


def cost(graph, *names, before=()):
    found = region_cost(graph, rows_named(graph, names), made_before=rows_named(graph, before))
    return found.bytes_read, found.bytes_written, found.flops


def test_what_flows_inside_is_not_moved_and_what_is_read_twice_counts_once():
    graph = record_of(lambda x: torch.relu(x + x) * x, torch.randn(8, 16))
    assert cost(graph, "add") == (512, 512, 0)
    assert cost(graph, "add", "relu") == (512, 512, 0)
    assert cost(graph, "add", "relu", "mul") == (512, 512, 0)
    assert cost(graph, "mul") == (1024, 512, 0)


def test_a_value_that_something_outside_reads_is_written_unless_an_earlier_kernel_did():
    graph = record_of(lambda x: (torch.relu(x) + 1, torch.relu(x).sum()), torch.randn(8, 16))
    names = [name for name in graph.names if name.startswith("relu")]
    assert cost(graph, names[0], "add") == (512, 512, 0)
    one = record_of(lambda x: (lambda y: (y + 1, y.sum()))(torch.relu(x)), torch.randn(8, 16))
    assert cost(one, "relu", "add") == (512, 1024, 0)
    assert cost(one, "relu", "sum_1", before=["relu", "add"]) == (512, 4, 0)


def test_views_move_nothing_and_lead_to_their_maker():
    graph = record_of(lambda x, w: torch.relu(x.t() @ w), torch.randn(8, 16), torch.randn(8, 4))
    assert cost(graph, "t") == (0, 0, 0)
    assert cost(graph, "t", "mm") == (512 + 128, 16 * 4 * 4, 2 * 16 * 8 * 4)
    assert cost(graph, "mm") == cost(graph, "t", "mm")


def test_a_lookup_reads_what_it_returns_not_its_table():
    graph = record_of(
        lambda table, ids: torch.nn.functional.embedding(ids, table), torch.randn(1000, 16), torch.arange(8)
    )
    assert cost(graph, "embedding") == (8 * 16 * 4 + 8 * 8, 8 * 16 * 4, 0)


def test_items_of_a_tuple_are_written_by_its_maker_and_changes_in_place_too():
    graph = record_of(lambda x: torch.max(x, 1)[0] + 1, torch.randn(8, 16))
    [name] = [name for name in graph.names if name.startswith("max")]
    assert cost(graph, name)[:2] == (512, 32)
    changed = record_of(lambda x: x.add_(1), torch.randn(8, 16))
    assert cost(changed, "add_") == (512, 512, 0)
    assert cost(graph, "unknown") == (0, 0, 0)


def test_a_product_split_from_its_bias_is_computed_once_and_read_by_what_the_bias_is_fused_with():
    def net(bias, x, w):
        wide = torch.addmm(bias, x, w)
        return torch.relu(wide), wide + 1

    graph = record_of(net, torch.randn(4), torch.randn(8, 16), torch.randn(16, 4))
    read, out = (4 + 8 * 16 + 16 * 4) * 4, 8 * 4 * 4
    assert cost(graph, "addmm") == (read, out, 2 * 8 * 16 * 4)
    assert cost(graph, "addmm", "relu", before=["addmm"]) == (out, out, 0)
    assert cost(graph, "addmm", before=["addmm"]) == (out, out, 0)
    assert cost(graph, "addmm", "relu") == (read, 2 * out, 2 * 8 * 16 * 4)
