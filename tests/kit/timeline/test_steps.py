import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.timeline.read import read
from kit.timeline.steps import NO_MARKS, Mark, steps

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", ["ddp_eager", "static_bucketed", "static_cudagraph"])
def test_own_captures_cut_at_the_optimizer_have_their_golden_steps(data: Path, kind: str, rank: int) -> None:
    golden = json.loads((data / "h200_golden.json").read_text())["independent"][f"gpt163m_{kind}_rank{rank}.json.gz"]
    timeline = read(data / f"h200_{kind}_rank{rank}.json.gz")
    assert [step.duration_ns for step in steps(timeline, rank, mark=Mark.OPTIMIZER)] == golden["device_step_ns"]


@pytest.mark.parametrize("name", ["sampled/rank0", "nccl_data", "negative_queue_rank0", "ns_resolution_rank0"])
def test_public_traces_cut_at_the_optimizer_have_their_golden_steps(shared_data: Path, name: str) -> None:
    folder = shared_data / "public"
    golden = json.loads((folder / "golden.json").read_text())["independent"][f"hta/{name}.json.gz"]
    timeline = read(folder / "hta" / f"{name}.json.gz")
    assert [step.duration_ns for step in steps(timeline, 0, mark=Mark.OPTIMIZER)] == golden["device_step_ns"]


def test_profiler_marks_go_before_two_optimizers_a_step(shared_data: Path) -> None:
    timeline = read(shared_data / "public" / "hta" / "sampled" / "rank0.json.gz")
    assert len(steps(timeline, 0, mark=Mark.OPTIMIZER)) == 4
    assert [step.name for step in steps(timeline, 0)] == ["ProfilerStep#551", "ProfilerStep#552"]


def test_a_step_ends_with_the_last_device_event_launched_in_its_mark(write: Write, span: Span) -> None:
    timeline = read(
        write(
            [
                span("user_annotation", "ProfilerStep#1", 0, 10),
                span("cuda_runtime", "cudaLaunchKernel", 2, 1, correlation=1),
                span("user_annotation", "ProfilerStep#2", 10, 10),
                span("cuda_runtime", "cudaLaunchKernel", 12, 1, correlation=2),
                span("kernel", "before the profile", 1, 4, pid=0),
                span("kernel", "a", 12, 13, pid=0, correlation=1),
                span("kernel", "b", 26, 4, pid=0, correlation=2),
            ]
        )
    )
    assert [(step.name, step.start_ns, step.end_ns) for step in steps(timeline, 0)] == [
        ("ProfilerStep#1", 1000, 25_000),
        ("ProfilerStep#2", 25_000, 30_000),
    ]


def test_replays_of_a_cuda_graph_are_steps_when_nothing_else_marks_them(data: Path) -> None:
    timeline = read(data / "h200_static_cudagraph_rank0.json.gz")
    found = steps(timeline, 0)
    assert [step.name for step in found] == ["cudaGraphLaunch"] * 3
    assert all(33e6 < step.duration_ns < 36e6 for step in found)  # 34.8 ms a free step, data/h200/README.md


def test_marks_of_a_cpu_only_rank_are_the_steps_themselves(write: Write, span: Span) -> None:
    timeline = read(write([span("user_annotation", "ProfilerStep#1", 1, 9), span("cpu_op", "aten::mm", 2, 3)]))
    assert [(step.start_ns, step.end_ns) for step in steps(timeline, 0)] == [(1000, 10_000)]


def test_without_marks_there_is_one_window_and_a_note_how_to_get_marks(write: Write, span: Span) -> None:
    timeline = read(write([span("kernel", "a", 3, 2), span("kernel", "b", 9, 1)]))
    [only] = steps(timeline, 0)
    assert (only.name, only.start_ns, only.end_ns) == ("whole window", 3000, 10_000)
    assert timeline.notes == (NO_MARKS,)


def test_a_beginners_trace_is_one_window_of_unknown_rank_and_cpu_only(tmp_path: Path) -> None:
    """Report C17: step() once, after the loop."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as recorder:
        for _ in range(8):
            (torch.ones(64, 64) @ torch.ones(64, 64)).sum()
        recorder.step()
    path = tmp_path / "t.json"
    recorder.export_chrome_trace(str(path))
    timeline = read(path)
    assert timeline.ranks == (-1,)
    assert timeline.cpu_only
    assert len(steps(timeline, -1)) == 1
    assert [note.split(":")[0] for note in timeline.notes] == ["t.json", "CPU-only", "no step marks"]
    assert "rank unknown, the file does not say it" in timeline.notes[0]
    assert repr(timeline).startswith("Timeline(rank unknown: ")
