import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kit.timeline.attribution import annotations_of, line_names, module_names, operator_names, place_names
from kit.timeline.kinds import device_rows
from kit.timeline.read import read
from kit.timeline.record import Category

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]
NODE = "autograd::engine::evaluate_function: AddmmBackward0"


def step(span: Span) -> list[dict[str, Any]]:
    return [
        span("python_function", "train.py(7): step", 0, 100),
        span("python_function", "nn.Module: Linear_3", 5, 90),
        span("python_function", "torch/nn/modules/linear.py(124): forward", 6, 80),
        span("cpu_op", "aten::linear", 10, 60, **{"Sequence number": 41}),
        span("cpu_op", "aten::addmm", 12, 40, **{"Sequence number": 42}),
        span("cuda_runtime", "cudaLaunchKernel", 15, 5, correlation=1),
        span("kernel", "gemm_forward", 40, 10, pid=0, tid=7, correlation=1, stream=7),
        span("cpu_op", NODE, 200, 50, tid=2, **{"Sequence number": 42}),
        span("cpu_op", "AddmmBackward0", 201, 40, tid=2, **{"Sequence number": 42}),
        span("cpu_op", "aten::mm", 205, 20, tid=2),
        span("cuda_runtime", "cudaLaunchKernel", 206, 5, tid=2, correlation=2),
        span("kernel", "gemm_backward", 220, 10, pid=0, tid=7, correlation=2, stream=7),
    ]


def test_a_kernel_of_the_backward_has_the_module_and_line_of_its_forward(write: Write, span: Span) -> None:
    timeline = read(write(step(span)))
    names = [timeline.strings[name] for name in timeline.name.tolist()]
    for name, operator in (("gemm_forward", "aten::linear"), ("gemm_backward", "AddmmBackward0")):
        row = names.index(name)
        assert operator_names(timeline)[row] == operator
        assert module_names(timeline)[row] == "Linear_3"
        assert line_names(timeline)[row] == place_names(timeline)[row] == "train.py(7): step"


def test_an_operator_is_found_by_external_id_when_calls_are_on_other_threads(write: Write, span: Span) -> None:
    events = [
        span("cpu_op", "aten::add", 0, 10, tid=1, **{"External id": 5}),
        span("cuda_runtime", "cudaLaunchKernel", 50, 5, tid=9, correlation=1, **{"External id": 5}),
        span("kernel", "add", 60, 10, pid=0, tid=7, correlation=1, stream=7, **{"External id": 5}),
    ]
    timeline = read(write(events))
    assert operator_names(timeline)[timeline.category == Category.KERNEL].tolist() == ["aten::add"]


def test_fsdp_names_the_module_of_its_collectives(shared_data: Path) -> None:
    timeline = read(shared_data / "h200/gpt163m_fsdp_eager_rank0.json.gz")
    found = module_names(timeline)[(timeline.collective >= 0) & (timeline.category == Category.KERNEL)]
    # 25 gathers and 13 reductions a step; the root's and what runs after the backward have no block.
    assert {f"b.{block}" for block in range(12)} <= set(found.tolist())


def test_annotations_are_those_that_hta_asserts(shared_data: Path) -> None:
    golden = json.loads((shared_data / "public/golden.json").read_text())["asserted_by_hta"]
    timeline = read(shared_data / "public/hta/ns_resolution_rank0.json.gz")
    for correlation in (135139, 164926):
        wanted, kernel = golden["hta/ns_resolution_rank0.json.gz"][f"annotation of correlation {correlation}"]
        [row] = np.flatnonzero(device_rows(timeline) & (timeline.correlation == correlation))
        assert annotations_of(timeline, int(row))[0] == wanted
        assert kernel.split("::::")[-1] in timeline.strings[timeline.name[row]]


def test_lines_and_modules_of_a_real_model_profiled_with_stacks(shared_data: Path) -> None:
    timeline = read(shared_data / "public/tracelens/h100_bert_small.json.gz")
    device = device_rows(timeline)
    assert all(line.startswith("transformers/") for line in line_names(timeline)[device])
    assert sum("modeling_bert.py" in line for line in line_names(timeline)[device]) > 40
    assert {"BertModel_0", "BertEmbeddings_0"} <= set(module_names(timeline)[device])
