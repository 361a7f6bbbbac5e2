"""Prices against FLOPs and bytes counted by hand."""

from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from kit.graph.capture import capture
from kit.graph.from_fx import graph_of
from kit.graph.record import Graph
from kit.graph.roofline import node_seconds


def _traced(function: Callable[..., object], *inputs: torch.Tensor) -> Graph:
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    return graph_of(gm, name="traced")


def _price(graph: Graph, target: str) -> tuple[float, int]:
    row = graph.targets.index(target)
    return float(graph.flops[row]), int(graph.bytes_moved[row])


def test_a_linear_layer_costs_two_flops_for_each_weight_and_row() -> None:
    graph = capture(torch.nn.Linear(8, 16), torch.zeros(4, 8)).graph
    assert _price(graph, "aten.linear.default") == (2 * 4 * 8 * 16, 4 * (4 * 8 + 8 * 16 + 16 + 4 * 16))


def test_a_convolution_costs_two_flops_for_each_weight_and_pixel() -> None:
    graph = capture(torch.nn.Conv2d(3, 5, 3, padding=1), torch.zeros(2, 3, 10, 10)).graph
    assert _price(graph, "aten.conv2d.default")[0] == 2 * 2 * 5 * 3 * 9 * 100


def test_attention_costs_its_two_products_forward_and_five_backward() -> None:
    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = [t.detach().requires_grad_() for t in (q, k, v)]
        return torch.autograd.grad(functional.scaled_dot_product_attention(*inputs).sum(), inputs)

    b, h, s, d = 2, 3, 16, 8
    graph = _traced(step, *(torch.zeros(b, h, s, d) for _ in range(3)))
    name = "aten._scaled_dot_product_flash_attention_for_cpu"
    assert _price(graph, f"{name}.default")[0] == 2 * 2 * b * h * s * s * d
    assert _price(graph, f"{name}_backward.default")[0] == 5 * 2 * b * h * s * s * d


def test_composite_attention_is_opened_up() -> None:
    class Attend(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    graph = capture(Attend(), torch.zeros(2, 3, 16, 8)).graph
    assert _price(graph, "aten.scaled_dot_product_attention.default")[0] == 4 * 2 * 3 * 16 * 16 * 8


def test_the_backward_of_a_product_is_two_products() -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        return torch.autograd.grad((x @ w).sum(), [x, w])

    graph = _traced(step, torch.zeros(4, 8), torch.zeros(8, 16))
    assert graph.flops.sum() == 3 * 2 * 4 * 8 * 16


def test_a_view_moves_nothing() -> None:
    graph = _traced(lambda x: x.t().reshape(2, 16) * 1, torch.zeros(4, 8))
    assert _price(graph, "aten.t.default") == (0, 0)


def test_a_lookup_counts_what_it_returns_and_not_the_table() -> None:
    graph = capture(torch.nn.Embedding(100_000, 8), torch.zeros(3, dtype=torch.long)).graph
    assert _price(graph, "aten.embedding.default") == (0, 2 * 3 * 8 * 4 + 3 * 8)


def test_work_in_place_reads_and_writes_its_target() -> None:
    graph = _traced(lambda x, y: x.add_(y), torch.zeros(10), torch.zeros(10))
    assert _price(graph, "aten.add_.Tensor") == (0, 3 * 40)


def test_a_foreach_update_counts_every_tensor_it_writes() -> None:
    def update(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        torch._foreach_mul_([a, b], 0.5)
        return a

    graph = _traced(update, torch.zeros(10), torch.zeros(20))
    assert _price(graph, "aten._foreach_mul_.Scalar") == (0, 2 * (40 + 80))


def test_an_input_read_twice_counts_once() -> None:
    graph = _traced(lambda x: x * x, torch.zeros(10))
    assert _price(graph, "aten.mul.Tensor") == (0, 80)


def test_ones_like_reads_only_a_shape() -> None:
    graph = _traced(torch.ones_like, torch.zeros(10))
    assert _price(graph, "aten.ones_like.default") == (0, 40)


def test_the_head_of_gpt2_takes_the_time_of_the_reference_table() -> None:
    """Reference: 4x256 ids, vocab 50257; the head is 20.6 % of 6.40 ms at 60 TFLOP/s and 1.5 TB/s."""
    with torch.device("meta"):
        head = torch.nn.Linear(768, 50257, bias=False)
        graph = capture(head, torch.zeros(4, 256, 768)).graph
    seconds = node_seconds(graph, flops_per_second=60e12, bytes_per_second=1.5e12)
    assert seconds.sum() == pytest.approx(0.206 * 6.40e-3, rel=0.005)


def test_seconds_are_bound_by_the_slower_of_work_and_traffic(make_graph: Callable[..., Graph]) -> None:
    graph = make_graph([(0, 1)])
    graph.flops[:] = [100.0, 0.0]
    assert node_seconds(graph, flops_per_second=10, bytes_per_second=2).tolist() == [10.0, 4.0]


def test_a_rate_of_zero_is_refused(make_graph: Callable[..., Graph]) -> None:
    with pytest.raises(ValueError, match=r"flops_per_second=0, bytes_per_second=1; expected both above 0"):
        node_seconds(make_graph([]), flops_per_second=0, bytes_per_second=1)
