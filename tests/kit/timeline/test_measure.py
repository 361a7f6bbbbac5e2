"""Golden values were counted in exact nanoseconds by a script that uses no trace library."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.timeline.measure import Breakdown, breakdown, breakdown_by_step
from kit.timeline.read import read
from kit.timeline.steps import Mark

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]

PUBLIC = [
    *(f"param/dlrm/rank{rank}.json.gz" for rank in range(8)),
    "hta/sampled/rank0.json.gz",
    "hta/sampled/rank1.json.gz",
    "hta/amd_mi250.json.gz",
    "hta/critical_path_simple_add.json.gz",
    "hta/nccl_data.json.gz",
    "hta/negative_queue_rank0.json.gz",
    "hta/ns_resolution_rank0.json.gz",
    "hta/triton_example.json.gz",
    "tracelens/h100_bert_small.json.gz",
    "tracelens/h100_qwen_0_5b.json.gz",
    "tracelens/mi210_gpu_only.json.gz",
    "tracelens/torch_compile_triton.json.gz",
    "tracelens/vllm_decode_full_graph_execution.json.gz",
]
OWN = ["ddp_eager", "static_bucketed", "static_cudagraph"]
SHARED_ONLY = ["fsdp_eager", "fsdp_compile", "static_reordered"]


def assert_golden(path: Path, golden: dict[str, Any]) -> None:
    timeline = read(path)
    [seen] = breakdown(timeline)
    assert {
        "window_ns": seen.window_ns,
        "busy_ns": seen.busy_ns,
        "idle_ns": seen.idle_ns,
        "compute_ns": seen.compute_ns,
        "comm_ns": seen.communication_ns,
        "memory_ns": seen.copy_ns,
        "overlap_ns": seen.overlap_ns,
        "exposed_comm_ns": seen.exposed_communication_ns,
        "overlap_pct": None if seen.overlap_share is None else pytest.approx(100 * seen.overlap_share, abs=1e-9),
    } == {key: golden[key] for key in golden.keys() & GOLDEN_KEYS}
    part = timeline.parts[0]
    assert (part.rank, part.world_size, part.base_ns) == (
        -1 if golden["rank"] is None else golden["rank"],
        golden["world_size"] or 0,
        golden["base_time_ns"] or 0,
    )
    assert_sums(seen)


GOLDEN_KEYS = {
    "window_ns", "busy_ns", "idle_ns", "compute_ns", "comm_ns", "memory_ns", "overlap_ns", "exposed_comm_ns",
    "overlap_pct",
}  # fmt: skip


def assert_sums(seen: Breakdown) -> None:
    parts = (seen.compute_ns, seen.exposed_communication_ns, seen.exposed_copy_ns, seen.idle_ns)
    assert sum(parts) == seen.window_ns
    assert min(parts) >= 0


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", OWN)
def test_own_captures_have_their_golden_values(data: Path, kind: str, rank: int) -> None:
    golden = json.loads((data / "h200_golden.json").read_text())["independent"]
    assert_golden(data / f"h200_{kind}_rank{rank}.json.gz", golden[f"gpt163m_{kind}_rank{rank}.json.gz"])


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", SHARED_ONLY)
def test_the_other_own_captures_have_their_golden_values(shared_data: Path, kind: str, rank: int) -> None:
    folder = shared_data / "h200"
    name = f"gpt163m_{kind}_rank{rank}.json.gz"
    assert_golden(folder / name, json.loads((folder / "golden.json").read_text())["independent"][name])


@pytest.mark.parametrize("name", PUBLIC)
def test_public_traces_have_their_golden_values(shared_data: Path, name: str) -> None:
    folder = shared_data / "public"
    assert_golden(folder / name, json.loads((folder / "golden.json").read_text())["independent"][name])


def test_dlrm_shares_are_those_that_hta_prints(shared_data: Path) -> None:
    folder = shared_data / "public"
    hta = json.loads((folder / "golden.json").read_text())["hta_0_5_0"]["param/dlrm"]
    seen = breakdown(read(folder / "param" / "dlrm"))
    assert [round(100 * row.idle_ns / row.window_ns, 2) for row in seen] == hta["idle_pct by rank"]
    assert [round(100 * row.compute_ns / row.window_ns, 2) for row in seen] == hta["compute_pct by rank"]
    assert [round(100 * (row.overlap_share or 0), 2) for row in seen] == hta["overlap_pct by rank"]


def test_without_communication_the_overlap_share_is_none_and_not_zero(write: Write, span: Span) -> None:
    [seen] = breakdown(read(write([span("kernel", "gemm", 1, 1)])))
    assert seen.overlap_share is None


def test_a_cpu_only_rank_says_so_and_sums_too(data: Path) -> None:
    for seen in breakdown(read([data / f"gloo_ddp_rank{rank}.json.gz" for rank in (0, 1)])):
        assert seen.cpu_only
        assert_sums(seen)
        assert seen.busy_ns > 0


def test_steps_sum_too_and_tile_the_window_when_cut_at_the_optimizer(data: Path) -> None:
    timeline = read(data / "h200_ddp_eager_rank1.json.gz")
    seen = breakdown_by_step(timeline, mark=Mark.OPTIMIZER)
    for row in seen:
        assert_sums(row)
    [whole] = breakdown(timeline)
    assert sum(row.window_ns for row in seen) == whole.window_ns
    assert sum(row.compute_ns for row in seen) == whole.compute_ns
    assert sum(row.communication_ns for row in seen) == whole.communication_ns


def test_a_file_without_anything_measured_gives_zeros(write: Write) -> None:
    [seen] = breakdown(read(write([])))
    assert (seen.window_ns, seen.idle_ns, seen.overlap_share) == (0, 0, None)
