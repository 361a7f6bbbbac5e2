"""FX graphs of both forms become records; what is expected is written by hand."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import fx
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx

from kit.graph.capture import export_module
from kit.graph.from_fx import GraphError, graph_of
from kit.graph.record import Graph, Kind, Phase


def _traced(function: Callable[..., Any], *inputs: torch.Tensor) -> fx.GraphModule:
    with fx_traceback.preserve_node_meta():
        return make_fx(function, tracing_mode="fake")(*inputs)


def _row(graph: Graph, target: str, which: int = 0) -> int:
    return [row for row, found in enumerate(graph.targets) if found == target][which]


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 4)
        self.constant = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.head(self.norm(x)).chunk(2, -1)
        return torch.cat([left, right], -1) + self.constant


@pytest.fixture(scope="module")
def exported() -> Graph:
    return graph_of(export_module(_Model(), (torch.zeros(6, 8),), {}), name="model")


def test_parameters_and_buffers_are_inputs_with_their_name(exported: Graph) -> None:
    named = {name for name, kind in zip(exported.parameter, exported.kinds, strict=True) if kind is Kind.INPUT}
    assert named >= {"head.weight", "head.bias", "norm.weight", "norm.running_mean", "norm.num_batches_tracked"}


def test_a_plain_tensor_of_the_model_is_a_constant(exported: Graph) -> None:
    assert exported.kinds[_row(exported, "constant")] is Kind.CONSTANT


def test_a_composite_operator_stays_one_node_with_module_and_source(exported: Graph) -> None:
    row = _row(exported, "aten.linear.default")
    assert exported.modules[row] == "head"
    assert exported.sources[row].startswith(__file__)
    assert exported.sources[row].endswith("left, right = self.head(self.norm(x)).chunk(2, -1)")


def test_items_of_a_split_share_the_memory_of_what_was_split(exported: Graph) -> None:
    linear, first, second = _row(exported, "aten.linear.default"), *(_row(exported, "getitem", i) for i in (0, 1))
    assert exported.storage[linear] == exported.storage[first] == exported.storage[second]
    assert exported.kinds[first] is Kind.GETITEM
    assert exported.shapes[first] == "float32[6, 2]"
    assert exported.bytes_out[first] == 6 * 2 * 4


def test_batch_norm_in_training_writes_its_running_statistics(exported: Graph) -> None:
    row = _row(exported, "aten.batch_norm.default")
    written = {number for at, number in exported.writes if at == row}
    statistics = {
        exported.storage[exported.parameter.index(f"norm.{name}")] for name in ("running_mean", "running_var")
    }
    assert written == statistics


def test_the_given_graph_is_not_changed() -> None:
    gm = _traced(lambda x: x.relu() + 1, torch.zeros(3))
    before = [(node.name, sorted(node.meta)) for node in gm.graph.nodes]
    graph_of(gm, name="g")
    assert [(node.name, sorted(node.meta)) for node in gm.graph.nodes] == before


def test_a_node_that_a_pass_left_without_value_is_evaluated() -> None:
    gm = _traced(lambda x: x.reshape(2, 6).relu(), torch.zeros(3, 4))
    for node in gm.graph.nodes:
        if node.op == "call_function":
            node.meta.clear()
    graph = graph_of(gm, name="g")
    assert graph.shapes[1:3] == ("float32[2, 6]", "float32[2, 6]")
    assert graph.kinds[1] is Kind.VIEW


def test_a_view_whose_metadata_lost_its_memory_is_still_a_view() -> None:
    gm = _traced(lambda x: x.t() * 2, torch.zeros(3, 4))
    node = next(node for node in gm.graph.nodes if "aten.t" in str(node.target))
    node.meta["val"] = node.meta["val"].clone()
    graph = graph_of(gm, name="g")
    assert graph.kinds[1] is Kind.VIEW
    assert graph.storage[0] == graph.storage[1]


def test_a_placeholder_without_shape_is_refused() -> None:
    gm = fx.symbolic_trace(torch.nn.ReLU())
    with pytest.raises(GraphError) as caught:
        graph_of(gm, name="g")
    assert str(caught.value) == (
        "graph 'g': placeholder 'input_1' has no value in its metadata, so no shape is known; capture the graph "
        "with kit.capture, torch.export or make_fx, which leave one"
    )


def test_inputs_belong_to_the_phase_that_first_reads_them() -> None:
    def step(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        fx_traceback.current_meta["custom"] = {"kit_phase": "forward", "kit_module": "a", "kit_source": ""}
        y = x * 2
        fx_traceback.current_meta["custom"] = {"kit_phase": "optimizer", "kit_module": "", "kit_source": ""}
        state.add_(y)
        fx_traceback.current_meta.pop("custom")
        return y

    graph = graph_of(_traced(step, torch.zeros(3), torch.zeros(3)), name="g", parameters={"state_1": "head.m"})
    assert graph.phases == (Phase.OPTIMIZER, Phase.FORWARD, Phase.FORWARD, Phase.OPTIMIZER, Phase.OPTIMIZER)
    assert graph.parameter[0] == "head.m"
    assert graph.mutates[3] == graph.storage[0]


def test_a_foreach_update_names_all_it_writes() -> None:
    def update(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        torch._foreach_mul_([a, b], 0.5)
        return a + b

    graph = graph_of(_traced(update, torch.zeros(2), torch.zeros(3).sum()), name="g")
    row = _row(graph, "aten._foreach_mul_.Scalar")
    assert [number for at, number in graph.writes if at == row] == graph.storage[:2].tolist()


@pytest.fixture
def fake_group() -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ.setdefault("TORCH_DIST_INIT_BARRIER", "0")
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def test_collectives_carry_their_group_and_waits_share_their_memory(fake_group: None) -> None:
    name = dist.group.WORLD.group_name
    functional = torch.ops._c10d_functional

    def reduce(x: torch.Tensor) -> torch.Tensor:
        whole = functional.wait_tensor(functional.all_gather_into_tensor(x, 4, name))
        return functional.wait_tensor(functional.all_reduce(whole, "sum", name)) * 2

    graph = graph_of(_traced(reduce, torch.zeros(8)), name="g")
    kinds = [Kind.INPUT, Kind.COLLECTIVE, Kind.WAIT, Kind.COLLECTIVE, Kind.WAIT, Kind.COMPUTE, Kind.OUTPUT]
    assert list(graph.kinds) == kinds
    assert graph.groups == ("", name, "", name, "", "", "")
    assert graph.bytes_out[1] == 4 * graph.bytes_out[0]
    assert graph.storage[1] == graph.storage[2] != graph.storage[3]
    assert graph.collective_count == 2


def test_of_a_conditional_the_dearer_branch_is_counted() -> None:
    class Choose(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda t: t @ t, lambda t: t @ t @ t, (x,))

    graph = graph_of(export_module(Choose(), (torch.ones(4, 4),), {}), name="g")
    assert graph.flops.sum() == 2 * 2 * 4**3
