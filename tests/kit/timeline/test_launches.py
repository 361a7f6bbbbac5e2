import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit.timeline.kinds import device_rows
from kit.timeline.launches import is_replayed, launch_delay_ns, launch_of, launches, losses
from kit.timeline.read import read

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]
PUBLIC = [
    "hta/negative_queue_rank0.json.gz", "hta/nccl_data.json.gz", "hta/ns_resolution_rank0.json.gz",
    "tracelens/h100_qwen_0_5b.json.gz", "tracelens/vllm_decode_full_graph_execution.json.gz",
    "param/dlrm/rank1.json.gz",
]  # fmt: skip


def assert_golden(path: Path, golden: dict[str, Any]) -> None:
    timeline = read(path)
    [row] = losses(timeline)
    launched = launch_of(timeline)[device_rows(timeline)]
    fan_out = max(np.unique(timeline.correlation[device_rows(timeline)], return_counts=True)[1])
    assert row.device_events == golden["kernels"] + golden["copies"] + golden["sets"]
    assert row.orphans == golden["orphans"] == int((launched < 0).sum())
    assert row.overlapping == golden["same_stream_overlaps"]
    assert fan_out == golden["max_events_per_correlation"]
    assert sum(entry.events for entry in launches(timeline)) == row.device_events - row.orphans


@pytest.mark.parametrize("kind", ["ddp_eager", "static_bucketed", "static_cudagraph"])
@pytest.mark.parametrize("rank", [0, 1])
def test_orphans_and_overlaps_of_own_captures_are_golden(data: Path, kind: str, rank: int) -> None:
    golden = json.loads((data / "h200_golden.json").read_text())["independent"]
    assert_golden(data / f"h200_{kind}_rank{rank}.json.gz", golden[f"gpt163m_{kind}_rank{rank}.json.gz"])


@pytest.mark.parametrize("name", PUBLIC)
def test_orphans_and_overlaps_of_public_traces_are_golden(shared_data: Path, name: str) -> None:
    folder = shared_data / "public"
    assert_golden(folder / name, json.loads((folder / "golden.json").read_text())["independent"][name])


def test_a_replay_is_one_launch_of_all_its_events(data: Path) -> None:
    timeline = read(data / "h200_static_cudagraph_rank0.json.gz")
    [row] = launches(timeline)
    assert (row.call, row.calls, row.events) == ("cudaGraphLaunch", 3, 3090)
    assert is_replayed(timeline).sum() == 3090


def test_delay_orphans_cut_off_launches_and_overlaps_of_a_hand_made_trace(write: Write, span: Span) -> None:
    events = [
        span("cuda_runtime", "cudaLaunchKernel", 10, 4, correlation=1),
        span("kernel", "a", 20, 10, pid=0, tid=7, correlation=1, stream=7, device=0),
        span("kernel", "b", 28, 5, pid=0, tid=7, correlation=99, stream=7, device=0),
        span("cuda_runtime", "cudaLaunchKernel", 40, 4, correlation=3),
    ]
    timeline = read(write(events))
    [row], [lost] = launches(timeline), losses(timeline)
    assert (row.calls, row.median_delay_ns, row.short, row.call_ns) == (1, 6_000, 0, 4_000)
    assert (lost.orphans, lost.unlaunched, lost.overlapping, lost.overlapping_ns) == (1, 1, 1, 2_000)
    assert sorted(launch_delay_ns(timeline).tolist()) == [0, 0, 0, 6_000]
    assert launches(timeline).notes[0].startswith("1 device events have no launch call")


def test_the_launch_delay_of_the_fft_kernel_is_what_hta_asserts(shared_data: Path) -> None:
    golden = json.loads((shared_data / "public/golden.json").read_text())["asserted_by_hta"]
    wanted = golden["hta/critical_path_simple_add.json.gz"]["kernel launch delay us (fft kernel)"]
    timeline = read(shared_data / "public/hta/critical_path_simple_add.json.gz")
    launch = launch_of(timeline)
    fft = [row for row in np.flatnonzero(device_rows(timeline)) if "fft2d_r2c" in timeline.strings[timeline.name[row]]]
    assert wanted in {(int(timeline.start_ns[row]) - int(timeline.start_ns[launch[row]])) // 1000 for row in fft}
