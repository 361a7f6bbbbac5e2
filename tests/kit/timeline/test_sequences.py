from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.timeline.read import read
from kit.timeline.sequences import sequences

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


def kernels(span: Span, names: str, *, stream: int = 7, at: int = 0) -> list[dict[str, Any]]:
    """One kernel of 6 us every 10 us, named by letters."""
    return [
        span("kernel", f"kernel_{name}", at + 10 * n, 6, pid=0, tid=stream, stream=stream, device=0, correlation=9)
        for n, name in enumerate(names)
    ]


def test_the_repeated_run_is_found_with_its_time_and_gaps(write: Write, span: Span) -> None:
    [row] = sequences(read(write(kernels(span, "xabcyabczabc"))))
    assert row.sequence == "kernel_a > kernel_b > kernel_c"
    assert (row.length, row.count, row.kernels_ns, row.gaps_ns) == (3, 3, 54_000, 24_000)


def test_shifts_of_a_loop_are_told_once(write: Write, span: Span) -> None:
    rows = sequences(read(write(kernels(span, "abcd" * 6))), shortest=4, longest=4)
    assert [(row.count, row.sequence) for row in rows] == [(6, "kernel_a > kernel_b > kernel_c > kernel_d")]


def test_a_run_does_not_cross_streams(write: Write, span: Span) -> None:
    events = kernels(span, "ab") + kernels(span, "ab", stream=8, at=100)
    assert len(sequences(read(write(events)), shortest=3)) == 0
    [row] = sequences(read(write(events)), shortest=2)
    assert (row.count, row.length) == (2, 2)


def test_only_kernels_inside_an_operator_when_asked(write: Write, span: Span) -> None:
    events = kernels(span, "abab", at=1000)
    for n, event in enumerate(list(events)):
        event["args"]["correlation"] = n
        events.append(span("cuda_runtime", "cudaLaunchKernel", 10 * n, 2, correlation=n))
    events.append(span("cpu_op", "aten::linear", 0, 15))
    timeline = read(write(events))
    assert len(sequences(timeline, shortest=2)) == 1
    assert len(sequences(timeline, shortest=2, operator="linear")) == 0


def test_lengths_that_make_no_sense_are_refused(data: Path) -> None:
    with pytest.raises(ValueError, match="got shortest=5, longest=4; expected 2 <= shortest <= longest"):
        sequences(read(data / "gloo_ddp_rank0.json.gz"), shortest=5, longest=4)


def test_the_blocks_of_a_model_are_found(data: Path) -> None:
    """12 layers, 3 replays: what belongs to a layer comes 36 times."""
    rows = sequences(read(data / "h200_static_cudagraph_rank0.json.gz"))
    assert rows[0].count == 36
    assert rows[0].kernels_ns >= rows[1].kernels_ns
