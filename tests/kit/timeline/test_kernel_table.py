import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from kit.timeline.kernel_kinds import kernel_kind, short_name
from kit.timeline.kernel_table import KEYS, kernels
from kit.timeline.kinds import communication_kernels, device_rows
from kit.timeline.read import read


def test_groups_are_those_of_a_plain_loop(data: Path) -> None:
    timeline = read([data / f"h200_ddp_eager_rank{rank}.json.gz" for rank in (0, 1)])
    wanted: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in np.flatnonzero(device_rows(timeline)).tolist():
        key = (str(timeline.rank[row]), timeline.strings[timeline.name[row]])
        wanted[key].append(int(timeline.duration_ns[row]))
    found = kernels(timeline, by=("rank", "full name"))
    assert {row.key: row.events for row in found} == {key: len(took) for key, took in wanted.items()}
    for row in found:
        took = sorted(wanted[row.key])
        assert (row.total_ns, row.shortest_ns, row.longest_ns) == (sum(took), took[0], took[-1])
        assert row.median_ns == took[len(took) // 2]
    assert sum(row.share for row in found) == pytest.approx(2.0)


def test_every_key_groups_all_device_time(data: Path) -> None:
    timeline = read(data / "h200_static_bucketed_rank0.json.gz")
    total = int(timeline.duration_ns[device_rows(timeline)].sum())
    for key in KEYS:
        assert sum(row.total_ns for row in kernels(timeline, by=(key,))) == total


def test_another_key_is_refused_with_the_list(data: Path) -> None:
    with pytest.raises(ValueError, match=r"got by=\['colour'\]; expected some of rank, step, phase"):
        kernels(read(data / "gloo_ddp_rank0.json.gz"), by=("colour",))


def test_launches_of_a_graph_count_once(data: Path) -> None:
    rows = kernels(read(data / "h200_static_cudagraph_rank0.json.gz"))
    assert {row.launches for row in rows} == {3}
    assert sum(row.events for row in rows) == 3090


def test_nccl_kernels_are_those_that_hta_asserts(shared_data: Path) -> None:
    golden = json.loads((shared_data / "public/golden.json").read_text())["asserted_by_hta"]["hta/nccl_data.json.gz"]
    timeline = read(shared_data / "public/hta/nccl_data.json.gz")
    rows = np.flatnonzero(communication_kernels(timeline))
    longest = rows[np.argmax(timeline.duration_ns[rows])]
    wanted = golden["longest nccl kernel"]
    assert len(rows) == golden["kernels named ncclKernel"]
    assert timeline.strings[timeline.collective[longest]] == wanted["collective_name"]
    assert timeline.elements_in[longest] == wanted["in_msg_nelems"]
    assert timeline.groups[timeline.group[longest]].description == wanted["process_group_desc"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "matmul"),
        ("triton_poi_fused_all_reduce_add_0", "fused"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)", "elementwise"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", "attention"),
        ("Cijk_Alik_Bljk_BBS_BH", "matmul"),
        ("something_new", "other"),
    ],
)
def test_kinds_of_names(name: str, kind: str) -> None:
    assert kernel_kind(name) == kind


def test_short_names_leave_templates_and_arguments_out() -> None:
    long = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
    assert short_name(long) == "vectorized_elementwise_kernel [CUDAFunctor_add]"
    assert short_name("void (anonymous namespace)::softmax_warp<float>(int)") == "softmax_warp"
    assert short_name("triton_poi_fused_add_0") == "triton_poi_fused_add_0"
    assert short_name("void elementwise_kernel<4, my_direct_copy_kernel_cuda>()") == (
        "elementwise_kernel [my_direct_copy_kernel_cuda]"
    )
    assert short_name("a" * (1 << 20)) == "a" * (1 << 20)  # hours, when the time grows with the square
