"""Names seen in real traces, sorted by hand."""

import pytest

from kit.timeline.kinds import is_collective_call, is_collective_work, is_communication_kernel, is_compiled_call


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Generic(ncclDevComm*)",
        "rcclGenericKernel<1, false>",
        "void multimem_all_reduce_kernel<c10::BFloat16>",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>",
        "deep_ep::intranode::dispatch",
        "nvshmemi_transfer_amo",
    ],
)
def test_kernels_that_move_data_between_devices(name: str) -> None:
    assert is_communication_kernel(name)


@pytest.mark.parametrize(
    "name",
    [
        "triton_poi_fused_all_reduce_nccl_0",
        "void batch_norm_SyncStats_nccl",
        "void batch_norm_collect_statistics_kernel",
        "hipMemcpyAsync",
        "Memcpy DtoD (Device -> Device)",
        "ampere_sgemm_128x64_nn",
        "void reduce_kernel<512, 1>",
    ],
)
def test_kernels_that_compute(name: str) -> None:
    assert not is_communication_kernel(name)


def test_host_calls_of_a_collective_are_told_from_operators_and_from_the_work() -> None:
    calls = ["c10d::allreduce_", "_c10d_functional::wait_tensor", "_c10d_functional::all_reduce", "record_param_comms"]
    works = ["gloo:all_reduce", "gloo:broadcast"]
    others = ["aten::mm", "torch.distributed.ddp.reducer::copy_bucket_to_grad", "DistributedDataParallel.forward"]
    assert [is_collective_call(name) for name in (*calls, *works, *others)] == [True] * 4 + [False] * 5
    assert [is_collective_work(name) for name in (*calls, *works, *others)] == [False] * 4 + [True] * 2 + [False] * 3


def test_compiled_regions_count_as_code_that_runs() -> None:
    assert is_compiled_call("## Call CompiledFxGraph ftfkfykxwcyp3n6o3aoseinx5zuf6flhcid5v5mryijddppwts4a ##")
    assert is_compiled_call("Torch-Compiled Region: 0/0")
    assert not is_compiled_call("ProfilerStep#3")
