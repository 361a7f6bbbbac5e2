"""Factors as doc/PERFORMANCE.md of nccl-tests has them."""

import pytest

from kit.timeline.bandwidth import algorithm_gbps, bus_gbps, collective_kind, element_bytes, message_bytes


@pytest.mark.parametrize(
    ("name", "kind", "factor"),
    [
        ("allreduce", "allreduce", 2 * 7 / 8),
        ("_allgather_base", "allgather", 7 / 8),
        ("ncclDevKernel_AllGather_RING_LL", "allgather", 7 / 8),
        ("reduce_scatter_tensor_coalesced", "reducescatter", 7 / 8),
        ("all_to_allv", "alltoall", 7 / 8),
        ("broadcast", "broadcast", 1.0),
        ("gloo:all_reduce", "allreduce", 2 * 7 / 8),
    ],
)
def test_bus_bandwidth_of_eight_ranks(name: str, kind: str, factor: float) -> None:
    assert collective_kind(name) == kind
    assert bus_gbps(kind, 100.0, 8) == pytest.approx(100 * factor)


def test_sizes_are_those_that_nccl_tests_counts() -> None:
    assert message_bytes("allreduce", 1000, 1000, "Float") == 4000
    assert message_bytes("allgather", 500, 1000, "BFloat16") == 2000  # all ranks' shards
    assert message_bytes("reducescatter", 1000, 500, "BFloat16") == 2000
    assert message_bytes("allreduce", -1, -1, "Float") is None
    assert message_bytes("allreduce", 10, 10, "Unheard") is None
    assert (element_bytes("c10::Half"), element_bytes("Long")) == (2, 8)


def test_without_time_ranks_or_kind_there_is_no_bandwidth() -> None:
    assert algorithm_gbps(4000, 2000) == 2.0
    assert algorithm_gbps(4000, 0) is None
    assert bus_gbps("allreduce", 1.0, 1) is None
    assert bus_gbps("", 1.0, 8) is None
    assert collective_kind("barrier") == ""
