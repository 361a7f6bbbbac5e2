"""Kernels of replays by their place, in traces by hand; a real replay is in tests/kit/test_step_kernels_h200.py."""

from kit.timeline.kernel_calls import kernel_calls
from kit.timeline.origins import GraphOrigins, KernelOrigins, Origin
from kit.timeline.read import read

CALLS = (
    "triton_poi_a_0", "extern_kernels.mm", "extern_kernels.mm", "triton_poi_b_1",
    "torch.ops._c10d_functional.all_reduce_.default", "torch.ops.aten._sdpa.default", "triton_poi_c_2",
    "extern_kernels.mm",
)  # fmt: skip


def calls_of(span, write, names, *, replays=1):
    """The call of each kernel of so many equal replays."""
    events = []
    for n in range(replays):
        at = 1000 * n
        events.append(span("cuda_runtime", "cudaGraphLaunch", at, 5, correlation=n + 1))
        for place, name in enumerate(names):
            stream = 9 if name.startswith("nccl") else 7
            events.append(
                span(
                    "kernel",
                    name,
                    at + 10 + 10 * place,
                    5,
                    pid=0,
                    tid=stream,
                    device=0,
                    stream=stream,
                    correlation=n + 1,
                )
            )
    timeline = read(write(events))
    graph = GraphOrigins(keys=("fa",), calls=tuple(Origin(kernel=name) for name in CALLS))
    found = kernel_calls(timeline, KernelOrigins(graphs=(graph,))).call
    return [int(found[row]) for row in timeline.start_ns.argsort() if timeline.strings[timeline.name[row]] in names]


def test_what_runs_between_two_known_kernels_is_of_the_calls_between(span, write) -> None:
    names = [
        "triton_poi_a_0", "gemm_x", "cublasLt::splitKreduce_kernel", "gemm_y", "triton_poi_b_1", "flash", "flash_end",
        "triton_poi_c_2", "gemm_z",
    ]  # fmt: skip
    assert calls_of(span, write, names, replays=2) == 2 * [0, 1, 1, 2, 3, 5, 5, 6, 7]


def test_another_number_of_kernels_than_calls_is_not_guessed(span, write) -> None:
    names = ["triton_poi_a_0", "gemm_x", "triton_poi_b_1", "triton_poi_c_2", "gemm_z"]
    assert calls_of(span, write, names) == [0, -1, 3, 6, 7]
    names[1:2] = ["gemm_x", "copy", "gemm_y"]
    assert calls_of(span, write, names) == [0, -1, -1, -1, 3, 6, 7]


def test_kernels_out_of_the_order_of_the_calls_are_known_by_name_only(span, write) -> None:
    names = ["triton_poi_b_1", "gemm_x", "gemm_y", "triton_poi_a_0", "triton_poi_c_2"]
    assert calls_of(span, write, names) == [3, -1, -1, 0, 6]


def test_collectives_are_no_call_of_a_place(span, write) -> None:
    names = [
        "triton_poi_a_0",
        "gemm_x",
        "gemm_y",
        "triton_poi_b_1",
        "ncclDevKernel_AllReduce",
        "flash",
        "triton_poi_c_2",
    ]
    assert calls_of(span, write, names) == [0, 1, 2, 3, -1, 5, 6]
