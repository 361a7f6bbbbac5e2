from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.timeline.error import TraceError
from kit.timeline.exact import as_int
from kit.timeline.read import read
from kit.timeline.record import Category, Group, Lane

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, 7), ("7", 7), ("07", 7), ("0x1f", 31), (7.0, 7), (7.5, -1), ("seven", -1), (None, -1), ([7], -1),
        (2**70, -1), (float("nan"), -1), ("9" * 30, -1), (True, -1),
    ],
)  # fmt: skip
def test_ids_are_whole_numbers_however_they_are_written(value: Any, expected: int) -> None:
    assert as_int(value) == expected


def test_pid_and_tid_may_be_numbers_or_text_in_one_file(write: Write, span: Span) -> None:
    path = write([span("cpu_op", "a", 1, 1, pid=12, tid=3), span("cpu_op", "b", 2, 1, pid="Spans", tid="main")])
    timeline = read(path)
    assert [timeline.lanes[lane] for lane in timeline.lane] == [
        Lane(rank=0, pid="12", tid="3"),
        Lane(rank=0, pid="Spans", tid="main"),
    ]


def test_a_stream_may_be_text_and_copies_have_one_too(write: Write, span: Span) -> None:
    path = write(
        [
            span("kernel", "k", 1, 1, stream="7", device=1, correlation=5),
            span("gpu_memcpy", "c", 2, 1, stream=20, device=1, correlation=6, bytes=832),
            span("cuda_runtime", "hipMemcpyWithStream", 3, 1, stream="0x0", correlation=6),
        ]
    )
    timeline = read(path)
    assert timeline.stream.tolist() == [7, 20, -1]
    assert timeline.device.tolist() == [1, 1, -1]
    assert timeline.correlation.tolist() == [5, 6, 6]
    assert timeline.copied_bytes.tolist() == [-1, 832, -1]


def test_arguments_of_a_collective_become_columns(data: Path) -> None:
    timeline = read(data / "h200_ddp_eager_rank0.json.gz")
    kernel = (timeline.category == Category.KERNEL) & (timeline.collective >= 0)
    assert kernel.sum() == 28
    assert int(timeline.elements_in[kernel].sum()) == 2 * 163_109_376  # both steps send every parameter once
    assert {timeline.strings[i] for i in timeline.collective[kernel]} == {"allreduce"}
    assert {timeline.strings[i] for i in timeline.dtype[kernel]} == {"Float"}
    assert timeline.groups == (Group(name="0", description="default_pg", ranks=(0, 1)),)


@pytest.mark.parametrize(
    ("members", "expected"),
    [("[0, 2]", (0, 2)), ([0, 2], (0, 2)), ("[0, 1, ..., 127]", ()), ("", ()), (None, ()), ({"a": 1}, ())],
)
def test_members_of_a_group_are_a_list_or_the_text_of_one(
    write: Write, span: Span, members: Any, expected: tuple[int, ...]
) -> None:
    args = {"Process Group Name": "tp", "Process Group Ranks": members}
    assert read(write([span("kernel", "k", 1, 1, **args)])).groups[0].ranks == expected


def test_times_are_wall_clock_and_the_base_gives_the_files_own(write: Write, span: Span) -> None:
    timeline = read(write([span("kernel", "k", 2.001, 1)], base_ns=1_790_857_026_000_000_000))
    assert timeline.start_ns.tolist() == [1_790_857_026_000_002_001]
    assert (timeline.start_ns - timeline.parts[0].base_ns).tolist() == [2001]


@pytest.mark.parametrize("time", [1e300, 9.3e18, -9.3e18])
def test_a_time_outside_the_range_is_refused_or_dropped_and_counted(write: Write, span: Span, time: float) -> None:
    path = write([span("kernel", "bad", time, 1), span("kernel", "good", 1, 1)])
    with pytest.raises(TraceError, match=r"span 0 \('bad'\) has ts .* expected finite microseconds within 146 years"):
        read(path)
    timeline = read(path, strict=False)
    assert ([timeline.strings[i] for i in timeline.name], timeline.parts[0].dropped) == (["good"], 1)


def test_a_span_that_never_ended_is_left_out_and_counted(write: Write, span: Span) -> None:
    timeline = read(write([span("kernel", "endless", 1, -1), span("kernel", "good", 1, 1)]))
    assert (len(timeline), timeline.parts[0].dropped) == (1, 1)
    assert "trace.json: 1 spans without a usable time were left out" in timeline.notes


def test_a_rank_is_taken_from_the_file_name_only_with_a_word(write: Write, span: Span) -> None:
    timeline = read(write([span("kernel", "k", 1, 1)], rank=None, name="job_rank12.json"))
    assert timeline.ranks == (12,)
    assert "job_rank12.json: the file does not say its rank; 12 is taken from its name" in timeline.notes


def test_categories_of_old_profilers_are_known(write: Write, span: Span) -> None:
    events = [span("Kernel", "k", 1, 1), span("Operator", "o", 2, 1), span("Runtime", "r", 3, 1)]
    events.append({"ph": "X", "name": "old", "ts": 4, "dur": 1, "pid": "CUDA functions", "tid": 1})
    events.append(span("mtia_runtime", "new", 5, 1))
    assert read(write(events)).category.tolist() == [
        Category.KERNEL, Category.CPU_OP, Category.RUNTIME, Category.KERNEL, Category.OTHER,
    ]  # fmt: skip


def test_ids_of_cuda_graphs_are_kept_and_zero_means_none(write: Write, span: Span) -> None:
    inside = {"graph id": 5, "graph node id": 21474836481}
    path = write(
        [
            span("kernel", "in a graph", 1, 1, stream=7, device=0, **inside),
            span("kernel", "in none", 2, 1, stream=7, device=0, **dict.fromkeys(inside, 0)),
            span("kernel", "of an old profiler", 3, 1, stream=7, device=0),
            span("cuda_runtime", "cudaGraphLaunch", 4, 1, **inside),
        ]
    )
    timeline = read(path)
    assert timeline.cuda_graph.tolist() == [5, -1, -1, -1]
    assert timeline.graph_node.tolist() == [21474836481, -1, -1, -1]


def test_of_events_that_start_together_the_longer_comes_first_and_else_the_files_order_holds(
    write: Write, span: Span
) -> None:
    times = [(5, 1), (2, 3), (5, 9), (2, 3), (5, 1), (1, 1), (2, 8)]
    timeline = read(write([span("cpu_op", f"{row}", ts, dur) for row, (ts, dur) in enumerate(times)]))
    rows = sorted(range(len(times)), key=lambda row: (times[row][0], -times[row][1], row))
    assert [int(timeline.strings[name]) for name in timeline.name] == rows


def test_a_time_too_late_for_a_float_counts_only_on_a_span(write: Write, span: Span) -> None:
    arrow = {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 1712195495502094.5, "cat": "ac2g", "name": "ac2g"}
    timeline = read(write([span("cpu_op", "a", 1.5, 1), arrow, span("cpu_op", "b", 8796093022207.999, 1)]))
    assert (timeline.start_ns - timeline.parts[0].base_ns).tolist() == [1500, 8796093022207999]
