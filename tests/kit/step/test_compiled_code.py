"""A graph as its kernels see it; that real steps have it is tested in tests/kit/test_step_kernels.py."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from kit.graph.from_fx import graph_of
from kit.step.compiled_code import compiled_graph


def test_nodes_are_described_in_order_of_the_graph_and_views_lend_no_line():
    module = make_fx(lambda x, w: torch.relu(x.t() @ w), tracing_mode="fake")(torch.randn(8, 16), torch.randn(8, 4))
    for number, node in enumerate(module.graph.nodes):
        node.meta["custom"] = {"kit_source": f"net.py:{number}: code", "kit_module": node.name, "kit_phase": "forward"}
    found = compiled_graph(graph_of(module, name="test"), torch.fx.GraphModule(module, module.graph))
    assert found.texts == ()
    assert found.calls() == (("aten.t.default", "t"), ("aten.mm.default", "mm"), ("aten.relu.default", "relu"))
    work = found.work_of(["relu", "t", "mm", "unknown"], ())
    assert (work.nodes, work.lines, work.modules) == (
        ("t", "mm", "relu"), ("net.py:3: code", "net.py:4: code"), ("mm", "relu"),
    )  # fmt: skip
    assert (work.bytes_read, work.bytes_written, work.flops) == (512 + 128, 256, 2 * 16 * 8 * 4)
    assert found.work_of(["t"], ()).lines == ("net.py:2: code",)


def test_what_only_goes_on_with_an_earlier_kernels_work_has_no_price():
    def net(x, y):
        return torch.cat([torch.relu(x), torch.neg(y)])

    module = make_fx(net, tracing_mode="fake")(torch.randn(8, 16), torch.randn(4, 16))
    found = compiled_graph(graph_of(module, name="test"), torch.fx.GraphModule(module, module.graph))

    def cost(names, before=(), shared=()):
        work = found.work_of(names, before, shared)
        return work.bytes_read, work.bytes_written, work.flops

    assert cost(["cat"]) == (512 + 256, 512 + 256, 0)
    assert cost(["relu", "cat"], shared=["cat"]) == (512, 512, 0)  # it writes its piece, not the whole
    assert cost(["neg", "cat"], before=["relu", "cat"], shared=["cat"]) == (256, 256, 0)
    assert cost(["cat"], before=["relu", "cat"], shared=["cat"]) == (-1, -1, -1)  # which piece is not told
    assert cost(["relu"], before=["relu"], shared=["relu"]) == (-1, -1, -1)  # a second stage
    assert cost([]) == (-1, -1, -1)
    assert found.work_of(["relu", "cat"], (), ["cat"]).nodes == ("relu", "cat")
    assert found.foreach_beyond([]) == ()
