"""How much the communication streams stand idle or wait, with an alarm at 35 %.

The stall ratio of a stream that carries collectives is the share of its span (from its first to its last collective,
in each step) in which it does not transfer: it stands idle, or a kernel of it is open and waits for another rank.
An idle stream alone is no fault: a step that computes much and sends little has one. So the evidence stands beside
the ratio: what of the stall is covered by computing (harmless), and what is not (seconds lost). The alarm sounds only
when the ratio is above 35 % and the lost part above 5 % of the span.
"""

from dataclasses import dataclass

import numpy as np

from kit.timeline.activity import activity
from kit.timeline.intervals import Spans, join, length, subtract, union
from kit.timeline.kinds import communication_kernels
from kit.timeline.match import Matching, match
from kit.timeline.record import Timeline
from kit.timeline.rows import Measured
from kit.timeline.steps import steps

ALARM_SHARE = 0.35
LEAST_LOST_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class StallRow:
    """The communication streams of one rank in one step.

    `stalled_ns` = `idle_ns` + `waiting_ns`, of `span_ns`. `idle_ns`: no collective on any communication stream;
    `waiting_ns`: a collective is open and another member has not come (None: only one rank, or clocks that do not
    compare). `hidden_ns`: the part of the stall during which the rank computes; `lost_ns` the rest.
    """

    rank: int
    step: str
    collectives: int
    span_ns: int
    idle_ns: int
    waiting_ns: int | None
    hidden_ns: int
    lost_ns: int
    stall_share: float
    alarm: bool
    evidence: str


def stalls(timeline: Timeline) -> Measured[StallRow]:
    """The stall ratio of each rank and step that has at least two collectives, and the alarm with its evidence."""
    matching = match(timeline)
    waits = matching.clocks_agree and len(timeline.ranks) > 1
    talks = communication_kernels(timeline)
    rows = []
    for rank in timeline.ranks:
        mine = np.arange(len(timeline))[timeline.rows_of(rank)]
        mine = mine[talks[mine]]
        waiting = _waiting(matching, rank) if waits else None
        compute = activity(timeline, rank).compute
        for step in steps(timeline, rank):
            start = timeline.start_ns[mine]
            here = mine[(start >= step.start_ns) & (start < step.end_ns)]
            if len(here) > 1:
                spans = union(timeline.start_ns[here], timeline.start_ns[here] + timeline.duration_ns[here])
                rows.append(_row(rank, step.name, len(here), spans, waiting, compute))
    notes = (
        () if waits else ("waiting inside collectives needs all ranks on comparable clocks; only idle time is counted",)
    )
    return Measured(name="stalls", rows=tuple(rows), notes=notes if rows else ())


def _row(rank: int, step: str, count: int, spans: Spans, waiting: Spans | None, compute: Spans) -> StallRow:
    whole = union(spans[0][:1], spans[1][-1:])
    idle = subtract(whole, spans)
    waited = subtract(spans, subtract(spans, waiting)) if waiting is not None else None
    stalled = join(idle, waited) if waited is not None else idle
    span, lost = length(whole), length(subtract(stalled, compute))
    share = length(stalled) / span if span else 0.0
    alarm = share > ALARM_SHARE and lost > LEAST_LOST_SHARE * span
    return StallRow(
        rank=rank, step=step, collectives=count, span_ns=span, idle_ns=length(idle),
        waiting_ns=None if waited is None else length(waited), hidden_ns=length(stalled) - lost, lost_ns=lost,
        stall_share=share, alarm=alarm, evidence=_evidence(length(idle), waited, lost, alarm=alarm, share=share),
    )  # fmt: skip


def _evidence(idle: int, waited: Spans | None, lost: int, *, alarm: bool, share: float) -> str:
    parts = f"idle {idle / 1e6:.1f} ms" + ("" if waited is None else f", waiting {length(waited) / 1e6:.1f} ms")
    if alarm:
        return f"{parts}; {lost / 1e6:.1f} ms of it while nothing computed"
    return f"{parts}; computing covers all but {lost / 1e6:.1f} ms" if share > ALARM_SHARE else parts


def _waiting(matching: Matching, rank: int) -> Spans:
    """When a rank had a collective open that another member had not yet begun."""
    spans = [
        (collective.start_ns[collective.ranks.index(rank)], max(collective.start_ns))
        for collective in matching.collectives
        if rank in collective.ranks
    ]
    both = np.array(spans, np.int64).reshape(-1, 2)
    return union(both[:, 0], both[:, 1])
