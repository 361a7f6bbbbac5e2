"""Real steps on two gloo ranks, compiled by Inductor and run node by node: kernels back to nodes and lines."""

import itertools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kit
from kit.timeline.error import TraceError

ACTIVE, RANKS = 2, 2
LINEAR = "test_step_kernels.py:25: wide = self.first(x)"
GELU = "test_step_kernels.py:26: return F.gelu(wide) * 2  # two operators, one kernel"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.first(x)
        return F.gelu(wide) * 2  # two operators, one kernel


def loss_of(model, batch):
    return model(batch).square().mean()


def profiled_module():
    """Forward and backward as graphs of Inductor: its C++ compiler has little to do here."""
    torch.manual_seed(0)
    batch = torch.randn(256, 16)
    module = kit.compile(Net(), batch, executor="inductor")
    timeline = kit.profile(
        lambda batch: loss_of(module, batch).backward(), itertools.repeat(batch), warmup=1, active=ACTIVE
    )
    return timeline, kit.kernel_origins(module), kit.attribute(timeline, module, hardware="h200"), module.forward_graph


def test_inductors_kernels_lead_to_nodes_lines_and_modules(ranks2) -> None:
    timeline, origins, table, graph = ranks2.run(profiled_module)[0]
    forward, backward = origins.graphs
    assert all(call.nodes for call in (*forward.calls, *backward.calls))
    assert all(set(call.nodes) <= set(graph.names) for call in forward.calls)
    [gelu] = [row for row in table if row.nodes == "gelu, mul"]
    assert gelu.kernel.startswith("cpp_fused_gelu_mul")
    assert (gelu.line, gelu.module, gelu.events) == (GELU, "(model)", ACTIVE * RANKS)
    assert gelu.moved_bytes == 2 * 256 * 32 * 4  # what flows from gelu to mul stays inside
    [matmul] = [row for row in table if row.kernel == "extern_kernels.addmm"]
    assert (matmul.line, matmul.module, matmul.nodes) == (LINEAR, "first", "addmm")
    assert matmul.moved_bytes == 4 * (256 * 16 + 16 * 32 + 32 + 256 * 32)
    assert matmul.tflops == pytest.approx(2 * 256 * 16 * 32 * ACTIVE * RANKS / matmul.total_ns / 1e3)
    assert matmul.flops_share == pytest.approx(matmul.tflops / 788)
    assert any("gelu_backward" in row.kernel and row.line.startswith(GELU) for row in table)
    assert not table.notes
    named = {timeline.strings[n] for n in timeline.name}
    assert all(f"## Call CompiledFxGraph {key} ##" in named for found in origins.graphs for key in found.keys)


def profiled_step():
    torch.manual_seed(0)
    model, batch = Net(), torch.randn(256, 16)
    step = kit.compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of, batch)
    timeline = kit.profile(step, itertools.repeat(batch), warmup=1, active=ACTIVE, memory=True)
    return timeline, kit.kernel_origins(step), kit.attribute(timeline, step)


def test_a_step_run_node_by_node_is_attributed_by_name_and_order(ranks2) -> None:
    timeline, origins, table = ranks2.run(profiled_step)[0]
    [gelu] = [row for row in table if row.nodes == "gelu"]
    assert (gelu.line, gelu.module, gelu.events) == (GELU, "(model)", ACTIVE * RANKS)
    assert gelu.moved_bytes == 2 * 256 * 32 * 4
    [matmul] = [row for row in table if row.kernel == "aten.addmm.default"]
    assert (matmul.line, matmul.module) == (LINEAR, "first")
    assert any(row.module == "(optimizer)" for row in table)
    assert "node by node" in table.notes[0]
    # Memory: both ranks, and with the origins the peak's line is inside the graph, where Python has no frames.
    peaks = kit.measure(timeline, "memory", origins=origins)
    assert [(row.rank, row.device) for row in peaks] == [(0, "cpu"), (1, "cpu")]
    for row in peaks:
        assert row.module in {"first", "(model)", "loss"} and row.line
        assert row.peak_bytes >= 2 * 256 * 32 * 4  # two activations at least
    assert kit.table(peaks)


def test_what_is_no_compiled_step_is_refused(ranks2, tmp_path: Path) -> None:
    timeline = kit.read(Path(__file__).parents[1] / "data" / "gloo_ddp_rank0.json.gz")
    with pytest.raises(TypeError, match=r"got a Linear, expected a step of kit\.compile_step"):
        kit.attribute(timeline, nn.Linear(2, 2))
    code = Path(__file__).parents[1] / "data" / "triton" / "inductor_output_code.txt"
    assert "no kernel of these graphs" in " ".join(kit.attribute(timeline, code).notes)
    with pytest.raises(TraceError, match="calls no kernel"):
        kit.attribute(timeline, __file__)
