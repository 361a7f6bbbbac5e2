"""Calls of compiled graphs found in this project's H200 captures (torch 2.11) and in traces by hand."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from kit.timeline.kernel_calls import event_name, kernel_calls
from kit.timeline.kinds import device_rows
from kit.timeline.launches import launch_of
from kit.timeline.nesting import enclosing, parent_of
from kit.timeline.origins import GraphOrigins, KernelOrigins, Origin
from kit.timeline.read import read
from kit.timeline.record import Category, Timeline

EXTERN = {"aten::mm": "extern_kernels.mm", "aten::addmm": "extern_kernels.addmm"}


def graphs_as_first_run(timeline: Timeline) -> KernelOrigins:
    """Forward and backward as their first runs in the capture show them: operators right below the range, in order."""
    named = np.array([timeline.strings[n] for n in timeline.name], object)
    ranges: dict[str, int] = {}
    for row in np.flatnonzero(timeline.category == Category.ANNOTATION).tolist():
        if named[row].startswith("## Call CompiledFxGraph "):
            ranges.setdefault(named[row].split()[3], row)
    graphs = []
    for key, row in ranges.items():
        below = np.flatnonzero((timeline.category == Category.CPU_OP) & (parent_of(timeline) == row))
        kept = [name for name in named[below] if name.startswith("triton_") or name in EXTERN]
        calls = tuple(Origin(kernel=EXTERN.get(name, name)) for name in kept)
        graphs.append(GraphOrigins(keys=(key,), calls=calls))
    return KernelOrigins(graphs=tuple(graphs))


def calls_of(origins: KernelOrigins) -> list[str]:
    return [call.kernel for graph in origins.graphs for call in graph.calls]


def test_each_kernel_of_a_real_gpu_trace_belongs_to_the_call_of_its_name(data: Path) -> None:
    timeline = read(data / "h200_static_bucketed_rank0.json.gz")
    origins = graphs_as_first_run(timeline)
    calls = calls_of(origins)
    found = kernel_calls(timeline, origins)
    assert [len(graph.calls) for graph in origins.graphs] == [215, 497]
    assert not found.unmatched
    kernels = np.flatnonzero((timeline.category == Category.KERNEL) & (found.call >= 0))
    names = [timeline.strings[n] for n in timeline.name[kernels]]
    for name, call in zip(names, found.call[kernels].tolist(), strict=True):
        assert name == calls[call] or not (name.startswith("triton_") or calls[call].startswith("triton_"))
    # Every Triton kernel of the file is found, each call once in each of the two runs.
    triton = [
        call for call, name in zip(found.call[kernels].tolist(), names, strict=True) if name.startswith("triton_")
    ]
    assert len(triton) == sum(
        timeline.strings[n].startswith("triton_") for n in timeline.name[timeline.category == Category.KERNEL]
    )
    assert set(Counter(triton).values()) == {2}
    # and what a library launches lies inside that call's operator.
    library = [row for row, name in zip(kernels.tolist(), names, strict=True) if not name.startswith("triton_")]
    above = enclosing(timeline, launch_of(timeline)[library], found.call >= 0)
    assert len(library) > 100
    assert {timeline.strings[n] for n in timeline.name[above]} <= set(EXTERN)


def test_kernels_of_a_replayed_graph_are_found_by_names_that_one_graph_alone_has(data: Path) -> None:
    origins = graphs_as_first_run(read(data / "h200_static_bucketed_rank0.json.gz"))
    replayed = read(data / "h200_static_cudagraph_rank0.json.gz")
    found = kernel_calls(replayed, origins)
    calls = calls_of(origins)
    kernels = np.flatnonzero(device_rows(replayed) & (found.call >= 0))
    assert [calls[found.call[row]] for row in kernels] == [replayed.strings[n] for n in replayed.name[kernels]]
    assert set(Counter(found.call[kernels].tolist()).values()) == {3}  # three replays
    first, second = (set(calls_of(KernelOrigins(graphs=(g,)))) for g in origins.graphs)
    triton = {n for n in (first ^ second) if n.startswith("triton_")} & set(replayed.strings)
    assert {replayed.strings[n] for n in replayed.name[kernels]} == triton and len(triton) > 200


def test_another_number_of_events_than_calls_is_not_guessed(span, write) -> None:
    events = [
        span("user_annotation", "## Call CompiledFxGraph fa ##", 0, 100),
        span("cpu_op", "aten::mm", 10, 10),
        span("cpu_op", "aten::mm", 30, 10),
        span("cpu_op", "aten::mm", 32, 3),  # inside the one before: not a call of its own
        span("cpu_op", "graph_1_cpp_fused_add_0", 50, 10),
        span("cpu_op", "aten::mm", 200, 10),  # outside
    ]
    timeline = read(write(events))
    calls = [Origin(kernel=name) for name in ("extern_kernels.mm", "cpp_fused_add_0", "torch.ops.aten.mm.default")]
    found = kernel_calls(timeline, KernelOrigins(graphs=(GraphOrigins(keys=("fa",), calls=tuple(calls)),)))
    assert found.call.tolist() == [-1, 0, 2, -1, 1, -1]
    assert found.unmatched == ()
    one = KernelOrigins(graphs=(GraphOrigins(keys=("fa",), calls=tuple(calls[:2])),))
    found = kernel_calls(timeline, one)
    assert found.call.tolist() == [-1, -1, -1, -1, 1, -1]
    assert found.unmatched == ("aten::mm (2 events, 1 calls)",)


def test_a_graph_run_node_by_node_is_found_in_each_step(span, write) -> None:
    step = [("aten::mm", 10), ("aten::relu", 30)]
    events = [
        event
        for start in (0, 100)
        for event in (
            span("user_annotation", f"ProfilerStep#{1 + start // 100}", start, 90),
            *(span("cpu_op", name, start + at, 10) for name, at in step),
        )
    ]
    calls = (Origin(kernel="aten.mm.default"), Origin(kernel="aten.relu.default"))
    graph = GraphOrigins(keys=(), calls=calls)
    timeline = read(write(events))
    assert kernel_calls(timeline, KernelOrigins(graphs=(graph,))).call.tolist() == [-1, 0, 1, -1, 0, 1]
    assert (kernel_calls(timeline, KernelOrigins(graphs=(graph, graph))).call == -1).all()  # which of two, nobody says


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("extern_kernels.addmm", "aten::addmm"),
        ("extern_kernels.bias_addmm", "aten::addmm"),
        ("torch.ops._c10d_functional.all_reduce_.default", "_c10d_functional::all_reduce_"),
        ("aten.native_layer_norm.default", "aten::native_layer_norm"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("getitem", "getitem"),
    ],
)
def test_names_of_calls_as_a_profile_has_them(kernel: str, name: str) -> None:
    assert event_name(kernel) == name
