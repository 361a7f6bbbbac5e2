import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit.timeline.nesting import enclosing, outermost, parent_of
from kit.timeline.read import read
from kit.timeline.record import Category, Timeline

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


def brute_force(timeline: Timeline) -> list[int]:
    """The last row before, of the same lane, that is open when the row starts."""
    start, end = timeline.start_ns, timeline.start_ns + np.maximum(timeline.duration_ns, 1)
    found = []
    for row in range(len(timeline)):
        held = [r for r in range(row) if timeline.lane[r] == timeline.lane[row] and end[r] > start[row]]
        found.append(held[-1] if held else -1)
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("crossing", [False, True])
def test_parents_are_those_of_a_brute_force_search(write: Write, span: Span, seed: int, crossing: bool) -> None:
    dice = random.Random(seed)
    events: list[dict[str, Any]] = []

    def fill(begin: int, end: int, depth: int, tid: int) -> None:
        at = begin
        while at < end and depth < 5:
            last = dice.randint(at, end)
            more = dice.randint(0, 3) if crossing else 0
            events.append(span("cpu_op", f"op{depth}", at, last - at + more, tid=tid))
            fill(at, last, depth + 1, tid)
            at = last + dice.randint(1, 4)

    for tid in (1, 2):
        fill(0, 60, 0, tid)
    timeline = read(write(events))
    assert parent_of(timeline).tolist() == brute_force(timeline)


def test_the_innermost_and_the_outermost_range_that_is_wanted(write: Write, span: Span) -> None:
    names = ["aten::linear", "aten::addmm", "cudaLaunchKernel"]
    events = [span("cpu_op" if n < 2 else "cuda_runtime", name, 10 * n, 50 - 20 * n) for n, name in enumerate(names)]
    timeline = read(write([*events, span("user_annotation", "mine", 0, 60)]))
    operator = timeline.category == Category.CPU_OP
    launch = np.flatnonzero(timeline.category == Category.RUNTIME)
    rows = np.append(launch, -1)
    assert [timeline.strings[timeline.name[row]] for row in enclosing(timeline, rows, operator)[:1]] == ["aten::addmm"]
    assert [timeline.strings[timeline.name[row]] for row in outermost(timeline, rows, operator)[:1]] == ["aten::linear"]
    assert enclosing(timeline, rows, operator)[1] == outermost(timeline, rows, operator)[1] == -1


def test_python_frames_on_a_thread_of_their_own_hold_the_operators_they_cover(write: Write, span: Span) -> None:
    events = [
        span("python_function", "train.py(3): step", 0, 100, pid=0, tid=0),
        span("cpu_op", "aten::mm", 10, 20, pid=5, tid=5),
        span("cpu_op", "autograd", 200, 20, pid=5, tid=6),
    ]
    timeline = read(write(events))
    assert parent_of(timeline).tolist() == [-1, 0, -1]
