from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.timeline.merge import merge
from kit.timeline.read import read
from kit.timeline.step_times import StepTimesError, step_times


def test_times_of_a_cpu_trace_are_the_shortest_over_ranks_and_the_median_over_steps(data: Path) -> None:
    times = step_times(read([data / f"gloo_functional_rank{rank}.json.gz" for rank in (0, 1)]))
    # Two steps of four all-reduces; the pairs are read off the trace: milliseconds of rank 0 and rank 1.
    first = [(4.137073, 3.814886), (0.639416, 1.785432), (0.221167, 0.377779), (0.667388, 0.816738)]
    second = [(1.221478, 1.417888), (1.321646, 1.578737), (0.520301, 0.518037), (0.455444, 0.422996)]
    expected = [(min(a) + min(b)) / 2 / 1e3 for a, b in zip(first, second, strict=True)]
    assert times.steps == 2
    assert [name for name, _ in times.collectives] == ["all_reduce"] * 4
    assert [seconds for _, seconds in times.collectives] == pytest.approx(expected)
    assert times.compute_seconds > 0


def test_times_of_kernels_are_named_as_in_a_graph(data: Path) -> None:
    times = step_times(read([data / f"h200_static_bucketed_rank{rank}.json.gz" for rank in (0, 1)]))
    assert sorted(name for name, _ in times.collectives) == ["all_gather", "reduce_scatter"]
    assert all(1e-5 < seconds < 0.1 for _, seconds in times.collectives)


def test_a_timeline_without_collectives_in_common_has_none(data: Path) -> None:
    alone = step_times(read(data / "gloo_functional_rank0.json.gz"))
    assert alone.collectives == ()


def test_steps_that_differ_are_refused(write: Callable[..., Path], data: Path) -> None:
    def work(start: float) -> dict[str, Any]:
        return {
            "ph": "X",
            "cat": "user_annotation",
            "name": "gloo:all_reduce",
            "ts": start,
            "dur": 5,
            "pid": 1,
            "tid": 2,
        }

    def step(number: int) -> dict[str, Any]:
        name = f"ProfilerStep#{number}"
        return {"ph": "X", "cat": "user_annotation", "name": name, "ts": 100 * number, "dur": 90, "pid": 1, "tid": 1}

    events = [step(1), step(2), work(110), work(210), work(230)]
    both = merge([read(write(events, rank=rank, name=f"{rank}.json")) for rank in (0, 1)])
    with pytest.raises(StepTimesError, match=r"different collectives \(1, 2 of them\)"):
        step_times(both)
