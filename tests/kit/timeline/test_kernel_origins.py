"""Rates worked out by hand from a trace by hand."""

import pytest

from kit.timeline.artifacts import Artifact
from kit.timeline.kernel_origins import origin_table
from kit.timeline.origins import GraphOrigins, KernelOrigins, Origin
from kit.timeline.read import read

CALLS = (
    Origin(
        kernel="triton_poi_fused_add_0", nodes=("add", "mul", "relu", "neg"),
        lines=("/a/net.py:3: x + y", "/a/b.py:1: z"),
        modules=("blocks.0",), bytes_read=600, bytes_written=400, flops=0.0,
    ),
    Origin(kernel="extern_kernels.mm", nodes=("mm",), lines=("net.py:9: x @ w",), bytes_read=90, bytes_written=10,
           flops=4000.0),
)  # fmt: skip
ORIGINS = KernelOrigins(graphs=(GraphOrigins(keys=("fa",), calls=CALLS),))


@pytest.fixture
def timeline(span, write):
    events = []
    for run, start in enumerate((0, 1000)):
        events += [
            span("user_annotation", "## Call CompiledFxGraph fa ##", start, 100),
            span("cpu_op", "triton_poi_fused_add_0", start + 10, 20),
            span("cuda_driver", "cuLaunchKernel", start + 12, 5, correlation=10 + run),
            span("cpu_op", "aten::mm", start + 40, 20),
            span("cuda_runtime", "cudaLaunchKernel", start + 42, 5, correlation=20 + run),
            span("cuda_runtime", "cudaLaunchKernel", start + 50, 5, correlation=30 + run),
            span(
                "kernel",
                "triton_poi_fused_add_0",
                start + 100,
                2,
                pid=0,
                tid=7,
                correlation=10 + run,
                device=0,
                stream=7,
            ),
            span("kernel", "gemm", start + 110, 3, pid=0, tid=7, correlation=20 + run, device=0, stream=7),
            span("kernel", "splitKreduce", start + 120, 1, pid=0, tid=7, correlation=30 + run, device=0, stream=7),
        ]
    events.append(span("kernel", "foreign", 3000, 12, pid=0, tid=7, device=0, stream=7))
    return read(write(events))


def test_rates_are_modelled_work_over_measured_time(timeline) -> None:
    table = origin_table(timeline, ORIGINS, bytes_per_second=1e9, flops_per_second=10e9)
    matmul, fused = table
    # mm: two kernels a run, 4 us a run, two runs; 100 bytes and 4000 operations a run.
    assert (matmul.kernel, matmul.events, matmul.total_ns, matmul.mean_ns) == ("extern_kernels.mm", 4, 8000, 2000)
    assert matmul.moved_gbps == pytest.approx(0.025)
    assert matmul.tflops == pytest.approx(1e-3)
    assert (matmul.bandwidth_share, matmul.flops_share) == (pytest.approx(0.025), pytest.approx(0.1))
    # fused: 2 us and 1000 bytes a run.
    assert (fused.events, fused.total_ns, fused.moved_bytes) == (2, 4000, 1000)
    assert fused.moved_gbps == pytest.approx(0.5)
    assert (fused.share, matmul.share) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert (fused.line, fused.module, fused.nodes) == (
        "net.py:3: x + y and 1 more", "blocks.0", "add, mul, relu and 1 more",
    )  # fmt: skip
    assert table.notes == ("50.0 % of the device time is in this table",)
    assert "net.py:9: x @ w" in str(table)


def test_facts_of_the_artifact_stand_beside_and_not_those_of_a_kernel_compiled_twice(timeline) -> None:
    artifact = Artifact(
        name="triton_poi_fused_add_0", folder="A", target="sm_90a", registers=32, stack_bytes=8, shared_bytes=64,
        warps=4, mix=(("float", 3), ("control", 1)),
    )  # fmt: skip
    matmul, fused = origin_table(timeline, ORIGINS, artifacts=[artifact])
    assert (fused.registers, fused.spilled_bytes, fused.shared_memory_bytes, fused.instructions) == (
        32, 8, 64, "3 float, 1 control",
    )  # fmt: skip
    assert (matmul.registers, matmul.bandwidth_share) == (None, None)
    [_, fused] = origin_table(timeline, ORIGINS, artifacts=[artifact, artifact])
    assert fused.registers is None


def test_calls_without_prices_have_no_rates(timeline) -> None:
    bare = KernelOrigins(graphs=(GraphOrigins(keys=("fa",), calls=(Origin(kernel="triton_poi_fused_add_0"),)),))
    [row] = origin_table(timeline, bare, bytes_per_second=1e9)
    assert (row.moved_bytes, row.moved_gbps, row.tflops, row.bandwidth_share) == (None, None, None, None)


def test_a_timeline_of_something_else_says_so_and_an_unknown_rank_is_refused(timeline) -> None:
    other = KernelOrigins(graphs=(GraphOrigins(keys=("zz",), calls=CALLS[1:]),))
    assert "no kernel of these graphs is in this timeline" in origin_table(timeline, other).notes[0]
    with pytest.raises(KeyError, match="rank 7 is not in this timeline"):
        origin_table(timeline, ORIGINS, rank=7)
