"""What each collective cost: who came late, by how much and why, and how fast the transfer itself was.

Rows come from `match` (the k-th of each process group and name), reasons from `lateness`, bandwidth from `bandwidth`.
"""

from dataclasses import dataclass

import numpy as np

from kit.timeline.attribution import line_names, module_names
from kit.timeline.bandwidth import algorithm_gbps, bus_gbps, collective_kind, message_bytes
from kit.timeline.lateness import lateness
from kit.timeline.match import Collective, Matching, match
from kit.timeline.record import Timeline
from kit.timeline.rows import Measured

NOT_COMPARABLE = "times of the ranks do not compare, so nobody is named late; see the measure 'clocks'"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """One collective over its ranks.

    `late_rank` came last, `late_ns` after the first; `why`: compute, host, data or communication ("" when nobody was
    late or the clocks do not compare). `waited_ns` is the waiting of all ranks summed, `transfer_ns` the earliest end
    - the latest start, `shortest_ns` the least kernel time, which the bandwidths are taken from. `size_bytes` is S of
    nccl-tests. `confidence` says what the match across ranks rests on.
    """

    group: str
    collective: str
    order: int
    ranks: int
    late_rank: int | None
    late_ns: int
    why: str
    waited_ns: int
    transfer_ns: int
    shortest_ns: int
    size_bytes: int | None
    algorithm_gbps: float | None
    bus_gbps: float | None
    confidence: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerRow:
    """How much the others waited for one rank and how much it waited itself, over all matched collectives.

    `last` of `collectives` found it last; `cost_ns` is the waiting of all other ranks in those; `why` is the reason
    that most of that waiting has. The rank with the least `waited_ns` is the straggler.
    """

    rank: int
    collectives: int
    last: int
    waited_ns: int
    cost_ns: int
    compute_ns: int
    host_ns: int
    data_ns: int
    communication_ns: int
    why: str


def collectives(timeline: Timeline) -> Measured[CollectiveRow]:
    """Every matched collective in order of time; of one rank alone nothing can be matched, and that is said."""
    matching = match(timeline)
    reasons = lateness(timeline, matching) if matching.clocks_agree else ()
    lines, modules = line_names(timeline), module_names(timeline)
    rows = []
    for number, collective in enumerate(matching.collectives):
        first = collective.rows[0]
        kind, size = collective_kind(collective.key.name), size_bytes(timeline, collective)
        shortest = shortest_ns(collective)
        algorithm = algorithm_gbps(size, shortest) if size is not None else None
        reason = reasons[number] if reasons else None
        members = len(timeline.groups[timeline.group[first]].ranks) if timeline.group[first] >= 0 else 0
        rows.append(
            CollectiveRow(
                group=collective.key.group,
                collective=collective.key.name,
                order=collective.order,
                ranks=len(collective.ranks),
                late_rank=reason.late_rank if reason and reason.cause else None,
                late_ns=max(collective.start_ns) - min(collective.start_ns),
                why=reason.cause if reason else "",
                waited_ns=sum(collective.waiting_ns),
                transfer_ns=collective.transfer_ns,
                shortest_ns=shortest,
                size_bytes=size,
                algorithm_gbps=algorithm,
                bus_gbps=bus_gbps(kind, algorithm, members or len(collective.ranks)) if algorithm else None,
                confidence=confidence(timeline, collective),
                where=str(lines[first] or modules[first]),
            )
        )
    return Measured(name="collectives", rows=tuple(rows), notes=_notes(timeline, matching))


def stragglers(timeline: Timeline) -> Measured[StragglerRow]:
    """Who the others waited for, and why, most costly first."""
    matching = match(timeline)
    if not matching.clocks_agree:
        return Measured(name="stragglers", rows=(), notes=_notes(timeline, matching))
    reasons = lateness(timeline, matching)
    rows = []
    for rank, waited in matching.waiting_ns.items():
        causes = dict.fromkeys(("compute", "host", "data", "communication"), 0)
        last, cost = 0, 0
        for collective, reason in zip(matching.collectives, reasons, strict=True):
            if collective.last_rank == rank and len(set(collective.start_ns)) > 1:
                last, cost = last + 1, cost + sum(collective.waiting_ns)
                if reason.cause:
                    causes[reason.cause] += sum(collective.waiting_ns)
        rows.append(
            StragglerRow(
                rank=rank, collectives=sum(rank in c.ranks for c in matching.collectives), last=last, waited_ns=waited,
                cost_ns=cost, compute_ns=causes["compute"], host_ns=causes["host"], data_ns=causes["data"],
                communication_ns=causes["communication"],
                why=max(causes, key=lambda cause: causes[cause]) if any(causes.values()) else "",
            )
        )  # fmt: skip
    rows.sort(key=lambda row: -row.cost_ns)
    return Measured(name="stragglers", rows=tuple(rows), notes=_notes(timeline, matching))


def size_bytes(timeline: Timeline, collective: Collective) -> int | None:
    """S of nccl-tests for a matched collective."""
    row = collective.rows[0]
    dtype = timeline.strings[timeline.dtype[row]] if timeline.dtype[row] >= 0 else ""
    most_in, most_out = (
        int(column[list(collective.rows)].max()) for column in (timeline.elements_in, timeline.elements_out)
    )
    return message_bytes(collective_kind(collective.key.name), most_in, most_out, dtype)


def shortest_ns(collective: Collective) -> int:
    """The least time that any rank's kernel took: that of a rank that came last."""
    return min(end - start for start, end in zip(collective.start_ns, collective.end_ns, strict=True))


def confidence(timeline: Timeline, collective: Collective) -> str:
    """What the match rests on; files carry no sequence number of collectives (pytorch/kineto#1294)."""
    rows = np.array(collective.rows)
    by = "order in group" if collective.key.group else "order of name"
    sized = (timeline.elements_in[rows] >= 0).all() and (timeline.dtype[rows] >= 0).all()
    checked = ", sizes agree" if sized else ""
    timed = ", times agree" if collective.is_plausible else ", times do not agree"
    return by + checked + timed


def _notes(timeline: Timeline, matching: Matching) -> tuple[str, ...]:
    if len(timeline.ranks) < 2:
        return ("one rank alone: waiting and transfer cannot be told apart; read the traces of all ranks together",)
    return (*matching.notes, *(() if matching.clocks_agree else (NOT_COMPARABLE,)))
