"""How each rank's time splits into compute, exposed communication, exposed copies and idle.

Definitions (facts of this room, agreeing with HolisticTraceAnalysis 0.5 where that is right): U(x) is the length of
the union of x over all streams of a rank. window = last end - first start; busy = U(all); overlap = U(comm) +
U(compute) - U(comm or compute). Time before the first and after the last event is outside the window.
"""

from dataclasses import dataclass

from kit.timeline.activity import Activity, activity, within
from kit.timeline.intervals import join, length
from kit.timeline.record import Timeline
from kit.timeline.steps import Mark, steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """One rank's window in exact nanoseconds.

    compute_ns + exposed_communication_ns + exposed_copy_ns + idle_ns == window_ns, always.
    `communication_ns` is all communication, `overlap_ns` the part of it that compute hides, `copy_ns` all copies and
    sets. `cpu_only`: threads of the host were counted (see `kit.timeline.activity`). `step` names the step, "" for
    the whole window.
    """

    rank: int
    step: str = ""
    cpu_only: bool
    window_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    idle_ns: int
    communication_ns: int
    copy_ns: int
    overlap_ns: int

    @property
    def busy_ns(self) -> int:
        """Time in which anything ran."""
        return self.window_ns - self.idle_ns

    @property
    def overlap_share(self) -> float | None:
        """The share (0 to 1) of communication that compute hides; None, not 0, without communication."""
        return self.overlap_ns / self.communication_ns if self.communication_ns else None


def breakdown(timeline: Timeline) -> tuple[Breakdown, ...]:
    """Each rank's whole window, in order of rank. On a CPU-only rank the host's threads are measured."""
    return tuple(_split(activity(timeline, rank), timeline, "") for rank in timeline.ranks)


def breakdown_by_step(timeline: Timeline, *, mark: Mark | None = None) -> tuple[Breakdown, ...]:
    """Each step of each rank, in order of rank and time; `kit.timeline.steps` says how steps are cut."""
    return tuple(
        _split(within(whole, step.start_ns, step.end_ns), timeline, step.name)
        for whole in (activity(timeline, rank) for rank in timeline.ranks)
        for step in steps(timeline, whole.rank, mark=mark)
    )


def breakdown_within(timeline: Timeline, start_ns: int, end_ns: int) -> tuple[Breakdown, ...]:
    """Each rank's part of [start_ns, end_ns), in order of rank; a rank's window ends where its own activity does.

    Raises `ValueError` for a range without length.
    """
    if not start_ns < end_ns:
        raise ValueError(f"the range {start_ns} to {end_ns} ns has no length; expected start_ns < end_ns")
    found = []
    for whole in (activity(timeline, rank) for rank in timeline.ranks):
        first = min(max(whole.start_ns, start_ns), whole.end_ns)
        part = within(whole, first, max(first, min(whole.end_ns, end_ns)))
        found.append(_split(part, timeline, ""))
    return tuple(found)


def _split(seen: Activity, timeline: Timeline, step: str) -> Breakdown:
    compute, communication = length(seen.compute), length(seen.communication)
    either = length(join(seen.compute, seen.communication))
    busy = length(join(seen.compute, seen.communication, seen.copy))
    return Breakdown(
        rank=seen.rank,
        step=step,
        cpu_only=timeline.part(seen.rank).cpu_only,
        window_ns=seen.end_ns - seen.start_ns,
        compute_ns=compute,
        exposed_communication_ns=either - compute,
        exposed_copy_ns=busy - either,
        idle_ns=seen.end_ns - seen.start_ns - busy,
        communication_ns=communication,
        copy_ns=length(seen.copy),
        overlap_ns=communication + compute - either,
    )
