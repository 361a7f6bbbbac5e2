"""What one step of a timeline took: its compute and each of its collectives, the same for all ranks.

A rank that comes early to a collective is in it while it waits, so a collective's time is the shortest over the ranks,
and of several steps the median. Ranks compute side by side: the step's compute is the slowest rank's.
"""

import statistics
from dataclasses import dataclass

from kit.timeline.match import Collective, match
from kit.timeline.measure import breakdown_by_step
from kit.timeline.record import Timeline
from kit.timeline.steps import steps

# What a collective is called in traces (gloo's work, NCCL's kernels and their arguments) -> its plain name.
_NAMES = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}


class StepTimesError(ValueError):
    """A timeline whose steps have not the same collectives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """`steps`: how many steps stand behind it. `collectives`: (plain name, seconds) in order of start."""

    steps: int
    compute_seconds: float
    collectives: tuple[tuple[str, float], ...]


def step_times(timeline: Timeline) -> StepTimes:
    """The times of one step; raises `StepTimesError` when steps differ or ranks do not match."""
    matching = match(timeline)
    if matching.uneven:
        raise StepTimesError(f"the ranks' collectives do not match: {matching.uneven[0].key} {matching.uneven[0].why}")
    first = timeline.ranks[0]
    marks = steps(timeline, first)
    by_step: list[list[Collective]] = [[] for _ in marks]
    for collective in matching.collectives:
        start = collective.start_ns[0]
        inside = [number for number, mark in enumerate(marks) if mark.start_ns <= start < mark.end_ns]
        if inside:
            by_step[inside[0]].append(collective)
    names = [tuple(_plain(collective.key.name) for collective in found) for found in by_step]
    if len({tuple(sorted(step)) for step in names}) != 1:
        counts = ", ".join(str(len(step)) for step in names) or "no steps"
        raise StepTimesError(
            f"the steps of the timeline start different collectives ({counts} of them); expected steps that repeat: "
            "profile after the warm-up, with kit.profile"
        )
    return StepTimes(
        steps=len(marks), compute_seconds=_compute_seconds(timeline), collectives=_medians(by_step, names[0])
    )


def _medians(by_step: list[list[Collective]], order: tuple[str, ...]) -> tuple[tuple[str, float], ...]:
    """The k-th of each name in every step, in the order of the first step."""
    seen: dict[str, int] = {}
    rows = []
    for name in order:
        place = seen[name] = seen.get(name, -1) + 1
        same = [[c for c in found if _plain(c.key.name) == name][place] for found in by_step]
        rows.append((name, statistics.median(map(_seconds, same))))
    return tuple(rows)


def _seconds(collective: Collective) -> float:
    return min(end - start for start, end in zip(collective.start_ns, collective.end_ns, strict=True)) / 1e9


def _compute_seconds(timeline: Timeline) -> float:
    """Median over the steps of the slowest rank's compute."""
    by_rank: dict[int, list[int]] = {}
    for row in breakdown_by_step(timeline):
        by_rank.setdefault(row.rank, []).append(row.compute_ns)
    slowest = [max(values) for values in zip(*by_rank.values(), strict=False)]
    return float(statistics.median(slowest)) / 1e9


def _plain(name: str) -> str:
    letters = "".join(c for c in name.lower() if c.isalpha())
    return next((plain for word, plain in _NAMES.items() if word in letters), name)
