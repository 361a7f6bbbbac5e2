"""All measures of a timeline by name, so that one verb reaches them.

Each is defined in its own module; here is only the list, with one line of what it answers.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from kit.timeline.measure import breakdown, breakdown_by_step
from kit.timeline.record import Timeline
from kit.timeline.rows import Measured

# Name -> (module, function, what it answers).
MEASURES: dict[str, tuple[str, str, str]] = {
    "breakdown": ("measures", "whole", "compute, exposed communication, exposed copies and idle of each rank"),
    "steps": ("measures", "by_step", "the same for each step"),
    "phases": ("shares", "phases", "the same for forward, backward and optimizer"),
    "streams": ("shares", "streams", "events and busy share of each stream"),
    "groups": ("shares", "groups", "communication of each process group, and what of it is exposed"),
    "kernels": ("kernel_table", "kernels", "device time by=('rank', 'kind') or any other keys"),
    "sequences": ("sequences", "sequences", "kernels that come again in the same order"),
    "launches": ("launches", "launches", "launch calls, their time and delay, outliers"),
    "replays": ("replays", "replays", "replays of CUDA graphs, their kernels by kind"),
    "losses": ("launches", "losses", "orphans, cut-off launches, overlaps, dropped events"),
    "queues": ("queue_length", "queues", "how many launched events wait for each stream"),
    "idle": ("idle_causes", "idle", "why each stream stood idle: host, kernel, dependency, other"),
    "copies": ("copy_bandwidth", "copies", "bytes and bandwidth of copies by kind"),
    "memory": ("memory_peaks", "memory_peaks", "the peak of each allocator, and the operator, module and line there"),
    "critical path": ("critical_path", "path_table", "the chain of work that sets the length of the window"),
    "recomputed": ("recomputation", "recomputed", "launches that checkpointing repeats"),
    "collectives": ("collective_costs", "collectives", "who came late to each collective, why, and bandwidth"),
    "stragglers": ("collective_costs", "stragglers", "who the others waited for, and why"),
    "stalls": ("stalls", "stalls", "the stall ratio of communication streams, with its alarm"),
    "clocks": ("clocks", "clocks", "how far the clocks of the ranks are apart"),
}


def measure(timeline: Timeline, what: str = "breakdown", **options: Any) -> Measured[Any]:
    """One measure of all ranks; its rows show themselves as a table.

    `what`: a name of `MEASURES`; `options` are those of the measure (`by=` of "kernels", `operator=` of "sequences",
    `rank=` of "critical path"). Raises `ValueError` for another name, `TypeError` for a record that is no Timeline.
    """
    if not isinstance(timeline, Timeline):
        raise TypeError(f"measure() got a {type(timeline).__name__}, expected a Timeline of kit.read or kit.profile")
    if what not in MEASURES:
        known = "\n".join(f"  {name}: {answers}" for name, (_, _, answers) in MEASURES.items())
        raise ValueError(f"measure() knows no {what!r}; it knows\n{known}")
    module, function, _ = MEASURES[what]
    run: Callable[..., Measured[Any]] = getattr(import_module(f"kit.timeline.{module}"), function)
    return run(timeline, **options)


def whole(timeline: Timeline) -> Measured[Any]:
    """`measure.breakdown` as a measure."""
    return Measured(name="breakdown", rows=breakdown(timeline), notes=timeline.notes)


def by_step(timeline: Timeline) -> Measured[Any]:
    """`measure.breakdown_by_step` as a measure."""
    return Measured(name="steps", rows=breakdown_by_step(timeline), notes=timeline.notes)
