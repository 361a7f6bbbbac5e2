from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kit.timeline.critical_path import critical_path, path_table
from kit.timeline.measure import breakdown
from kit.timeline.read import read
from kit.timeline.record import Timeline

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]
CAPTURES = [
    "hta/critical_path_simple_add.json.gz", "hta/negative_queue_rank0.json.gz", "hta/amd_mi250.json.gz",
    "tracelens/h100_qwen_0_5b.json.gz", "tracelens/vllm_decode_full_graph_execution.json.gz",
]  # fmt: skip


def pieces_us(timeline: Timeline, rank: int | None = None) -> list[tuple[int, str, int, int]]:
    pieces = critical_path(timeline, rank=rank)
    return [(p.rank, p.kind, p.start_ns // 1000, p.end_ns // 1000) for p in pieces]


def launched(
    span: Span, call: int, at: int, start: int, took: int, name: str, *, stream: int = 7
) -> list[dict[str, Any]]:
    return [
        span("cuda_runtime", "cudaLaunchKernel", at, 2, correlation=call),
        span("kernel", name, start, took, pid=0, tid=stream, stream=stream, device=0, correlation=call),
    ]


def test_the_path_goes_over_streams_and_back_to_the_host(write: Write, span: Span) -> None:
    events = [
        *launched(span, 1, 0, 5, 20, "gemm_1"),
        *launched(span, 2, 3, 26, 10, "gemm_short"),  # ends at 36, nobody waits for it
        *launched(span, 3, 60, 64, 100, "gemm_2"),  # launched after the stream was free: the host was late
        *launched(span, 4, 61, 170, 30, "gemm_3", stream=9),  # another stream, began when gemm_2 had ended
    ]
    assert pieces_us(read(write(events))) == [
        (0, "host", 5, 60), (0, "launch", 60, 64), (0, "matmul", 64, 164), (0, "gap", 164, 170),
        (0, "matmul", 170, 200),
    ]  # fmt: skip


def test_the_path_goes_through_a_synchronise_to_what_it_waited_for(write: Write, span: Span) -> None:
    events = [
        *launched(span, 1, 0, 5, 100, "gemm_1"),
        span("cuda_runtime", "cudaDeviceSynchronize", 10, 98),
        *launched(span, 2, 120, 125, 10, "gemm_2"),
    ]
    assert pieces_us(read(write(events))) == [
        (0, "matmul", 5, 105), (0, "host", 105, 120), (0, "launch", 120, 125), (0, "matmul", 125, 135),
    ]  # fmt: skip


def test_the_path_goes_on_in_the_rank_that_came_last(write: Write, span: Span) -> None:
    paths = []
    for rank, busy in ((0, 20), (1, 100)):
        events = launched(span, 1, 0, 5, busy, "gemm")
        begin = 5 + busy
        events += launched(span, 2, 1, begin, 120 - begin, "ncclAllReduce", stream=20)
        if rank == 0:
            events += launched(span, 3, 2, 120, 50, "gemm")
        paths.append(write(events, rank=rank, name=f"rank{rank}.json"))
    timeline = read(paths)
    assert pieces_us(timeline) == [
        (1, "matmul", 5, 105), (0, "communication", 105, 120), (0, "matmul", 120, 170),
    ]  # fmt: skip
    assert [piece[0] for piece in pieces_us(timeline, rank=0)] == [0, 0, 0]


def assert_tiles(timeline: Timeline) -> None:
    for whole in breakdown(timeline):
        pieces = critical_path(timeline, rank=whole.rank)
        assert all(piece.end_ns >= piece.start_ns for piece in pieces)
        assert all(a.end_ns == b.start_ns for a, b in pairwise(pieces))
        assert pieces[-1].end_ns - pieces[0].start_ns == whole.window_ns
        assert sum(row.total_ns for row in path_table(timeline, rank=whole.rank)) == whole.window_ns


@pytest.mark.parametrize("kind", ["ddp_eager", "static_bucketed", "static_cudagraph"])
def test_pieces_tile_the_window_of_own_captures(data: Path, kind: str) -> None:
    timeline = read([data / f"h200_{kind}_rank{rank}.json.gz" for rank in (0, 1)])
    assert_tiles(timeline)
    both = critical_path(timeline)
    assert all(a.end_ns == b.start_ns for a, b in pairwise(both))


@pytest.mark.parametrize("name", CAPTURES)
def test_pieces_tile_the_window_of_public_traces(shared_data: Path, name: str) -> None:
    assert_tiles(read(shared_data / "public" / name))


def test_a_replayed_graph_is_bound_by_its_kernels_and_an_eager_step_by_its_host(data: Path) -> None:
    graph, eager = (read(data / f"h200_{kind}_rank0.json.gz") for kind in ("static_cudagraph", "ddp_eager"))
    assert path_table(graph)[0].kind == "matmul"
    assert sum(row.share for row in path_table(graph) if row.kind == "host") == 0
    assert path_table(eager)[0].kind == "host"


def test_without_a_device_there_is_no_path(data: Path) -> None:
    assert critical_path(read(data / "gloo_ddp_rank0.json.gz")) == ()
