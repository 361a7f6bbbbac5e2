import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.timeline.activity import Activity, activity, within
from kit.timeline.intervals import Spans
from kit.timeline.read import read
from kit.timeline.record import Timeline

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


def pairs(spans: Spans) -> list[tuple[int, int]]:
    return list(zip(spans[0].tolist(), spans[1].tolist(), strict=True))


@pytest.fixture
def host(write: Write, span: Span) -> Activity:
    """One CPU-only rank, in whole microseconds.

    main thread: an operator 0-10 with a collective call 6-8 inside, an operator 12-20, a wait 20-30 with an operator
    27-29 inside, an operator 33-35. Backend's thread: a collective 14-28 with packing 15-16 inside.
    """
    return activity(
        read(
            write(
                [
                    span("user_annotation", "ProfilerStep#0", -5, 50),
                    span("cpu_op", "autograd::engine::evaluate_function: A", 0, 10),
                    span("cpu_op", "c10d::allreduce_", 6, 2),
                    span("cpu_op", "aten::mm", 12, 8),
                    span("cpu_op", "_c10d_functional::wait_tensor", 20, 10),
                    span("cpu_op", "aten::copy_", 27, 2),
                    span("cpu_op", "aten::add_", 33, 2),
                    span("user_annotation", "gloo:all_reduce", 14, 14, tid=2),
                    span("cpu_op", "aten::cat", 15, 1, tid=2),
                ]
            )
        ),
        0,
    )


def test_compute_of_a_host_is_its_operators_without_collective_calls_and_packing(host: Activity) -> None:
    assert pairs(host.compute) == [(0, 6000), (8000, 10_000), (12_000, 20_000), (33_000, 35_000)]


def test_communication_of_a_host_is_the_backends_work_and_the_calls(host: Activity) -> None:
    assert pairs(host.communication) == [(6000, 8000), (14_000, 30_000)]


def test_exposed_communication_is_what_no_compute_hides(host: Activity) -> None:
    assert pairs(host.exposed_communication) == [(6000, 8000), (20_000, 30_000)]
    assert pairs(host.hidden_communication) == [(14_000, 20_000)]


def test_idle_is_the_rest_between_the_first_and_the_last_thing_that_ran(host: Activity) -> None:
    assert (host.start_ns, host.end_ns) == (0, 35_000)
    assert pairs(host.idle) == [(10_000, 12_000), (30_000, 33_000)]
    assert pairs(host.copy) == []


def test_a_part_of_an_activity_is_cut_at_its_window(host: Activity) -> None:
    part = within(host, 7000, 13_000)
    assert pairs(part.compute) == [(8000, 10_000), (12_000, 13_000)]
    assert pairs(part.communication) == [(7000, 8000)]
    assert pairs(part.idle) == [(10_000, 12_000)]


def test_a_devices_streams_are_taken_together(write: Write, span: Span) -> None:
    seen = activity(
        read(
            write(
                [
                    span("cpu_op", "aten::mm", 0, 100),
                    span("kernel", "gemm", 10, 10, pid=0, tid=7),
                    span("kernel", "gemm", 15, 10, pid=0, tid=8),
                    span("kernel", "ncclDevKernel_AllReduce", 20, 20, pid=0, tid=9),
                    span("gpu_memcpy", "Memcpy HtoD", 35, 10, pid=0, tid=10),
                    span("gpu_memset", "Memset", 50, 5, pid=0, tid=7),
                    span("gpu_user_annotation", "ProfilerStep#1", 0, 200, pid=0, tid=7),
                    span("cuda_sync", "Stream Synchronize", 0, 200, pid=0, tid=7),
                ]
            )
        ),
        0,
    )
    assert pairs(seen.compute) == [(10_000, 25_000)]
    assert pairs(seen.hidden_communication) == [(20_000, 25_000)]
    assert pairs(seen.exposed_communication) == [(25_000, 40_000)]
    assert pairs(seen.exposed_copy) == [(40_000, 45_000), (50_000, 55_000)]
    assert pairs(seen.idle) == [(45_000, 50_000)]


def microseconds_by_brute_force(timeline: Timeline, rank: int) -> dict[str, int]:
    """An independent count on a real gloo capture: which threads do what in each elementary interval."""
    spans = []
    for row in range(len(timeline)):
        name = timeline.strings[timeline.name[row]]
        if timeline.rank[row] == rank and not name.startswith(("ProfilerStep", "Optimizer", "DistributedData")):
            start = int(timeline.start_ns[row])
            spans.append((start, start + int(timeline.duration_ns[row]), int(timeline.lane[row]), name))
    edges = sorted({edge for start, end, _, _ in spans for edge in (start, end)})
    total = {"compute": 0, "exposed": 0, "hidden": 0, "idle": 0}
    for left, right in itertools.pairwise(edges):
        threads: dict[int, list[str]] = {}
        for start, end, lane, name in spans:
            if start <= left and right <= end:
                threads.setdefault(lane, []).append(name)
        talks = {lane: any("c10d" in n or n.startswith("gloo:") for n in names) for lane, names in threads.items()}
        computes = not all(talks.values())
        if computes:
            total["compute"] += right - left
        if any(talks.values()):
            total["hidden" if computes else "exposed"] += right - left
        elif not computes:
            total["idle"] += right - left
    return total


@pytest.mark.parametrize("kind", ["functional", "ddp"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_real_gloo_capture_is_split_as_a_brute_force_count_splits_it(data: Path, kind: str, rank: int) -> None:
    timeline = read([data / f"gloo_{kind}_rank{r}.json.gz" for r in (0, 1)])
    seen = activity(timeline, rank)
    expected = microseconds_by_brute_force(timeline, rank)
    assert {
        "compute": sum(end - start for start, end in pairs(seen.compute)),
        "exposed": sum(end - start for start, end in pairs(seen.exposed_communication)),
        "hidden": sum(end - start for start, end in pairs(seen.hidden_communication)),
        "idle": sum(end - start for start, end in pairs(seen.idle)),
    } == expected
    assert min(expected["compute"], expected["exposed"], expected["hidden"], expected["idle"]) > 0
