"""Rules on communication: who is waited for, transfers that nothing hides, collectives outside the compiled graphs."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from kit.timeline.attribution import place_names
from kit.timeline.bandwidth import algorithm_gbps, bus_gbps, collective_kind
from kit.timeline.collective_costs import shortest_ns, size_bytes
from kit.timeline.diagnosis.facts import Facts, lost_ns
from kit.timeline.diagnosis.finding import Finding
from kit.timeline.intervals import length
from kit.timeline.kinds import (
    communication_kernels,
    is_collective_call,
    is_collective_work,
    is_compiled_call,
    rows_named,
)
from kit.timeline.lateness import WORDS
from kit.timeline.launches import is_replayed
from kit.timeline.nesting import enclosing
from kit.timeline.record import Category, Timeline

SMALL_BYTES = 4_000_000  # below it, latency and not the link sets the time (H200: 238 GB/s at 28 MB, less under it)
_ADVICE = {
    "host": (
        "let the late rank's host launch less: kit.compile_step(executor='cuda_graph') or executor='inductor'",
        "look for what else runs on its cores; OMP_NUM_THREADS=1, which torchrun sets, slows a host-bound step",
    ),
    "compute": (
        "give all ranks the same work: equal lengths in a micro-batch, or kit.cut with measured seconds",
        "look at the late rank's clocks and temperature: kit.table of both ranks shows which kernels are slower",
    ),
    "data": ("load ahead: DataLoader(num_workers=, pin_memory=True, prefetch_factor=), copies with non_blocking=True",),
    "communication": ("overlapping groups wait for one another: order their collectives alike on all ranks",),
    "replay": ("the replay itself was launched late: prepare the next batch before the replay, without a synchronise",),
    "": ("read the measure 'collectives' for who was late to which",),
}


def waiting(facts: Facts) -> list[Finding]:
    """Ranks stand in collectives because another has not come."""
    lost = {each.rank: lost_ns(each.waiting) for each in facts.ranks if each.waiting is not None}
    if len(lost) < 2 or not any(lost.values()):
        return []
    who, most = facts.worst(lost)
    costs: Counter[int] = Counter()
    causes: Counter[str] = Counter()
    places: Counter[int] = Counter()
    for number, (collective, reason) in enumerate(zip(facts.matching.collectives, facts.reasons, strict=True)):
        if who.rank in collective.ranks and collective.last_rank != who.rank:
            waited = collective.waiting_ns[collective.ranks.index(who.rank)]
            costs[collective.last_rank] += waited
            causes[reason.cause] += waited
            places[number] += waited
    if not costs:
        return []
    late, cause = costs.most_common(1)[0][0], causes.most_common(1)[0][0]
    worst = facts.matching.collectives[places.most_common(1)[0][0]]
    own = lost.get(late, 0)
    replayed = bool(is_replayed(facts.timeline)[list(worst.rows)].any())
    evidence = [
        f"rank {late} came last to {sum(c.last_rank == late for c in facts.matching.collectives)} of "
        f"{len(facts.matching.collectives)} collectives and waited {own / 1e6:.1f} ms itself",
        f"most at {worst.key} number {worst.order}: {max(worst.waiting_ns) / 1e6:.1f} ms late, transfer "
        f"{worst.transfer_ns / 1e6:.2f} ms",
        *([f"rank {late} was late because {WORDS[cause]}"] if cause else []),
    ]
    if own > 0.5 * most:
        evidence.append("the ranks take turns at being late, which slows them more than one steady straggler")
    return [
        Finding(
            kind="waiting", title=f"rank {who.rank} waits for rank {late}", rank=who.rank, lost_ns=most,
            share=most / who.window_ns, evidence=tuple(evidence), where=_place(facts.timeline, worst.rows[0]),
            advice=_ADVICE["replay" if cause == "host" and replayed else cause],
        )
    ]  # fmt: skip


def transfer(facts: Facts) -> list[Finding]:
    """Communication that nothing hides, without the waiting in it."""
    lost = {each.rank: length(each.transfer) for each in facts.ranks}
    if not lost or not any(lost.values()):
        return []
    who, most = facts.worst(lost)
    timeline = facts.timeline
    talks = np.flatnonzero((timeline.rank == who.rank) & (communication_kernels(timeline) | _work(timeline)))
    hidden, whole = length(who.seen.hidden_communication), length(who.seen.communication)
    a_step = len(talks) / max(1, who.steps)
    evidence = [
        f"{len(talks)} collectives, {a_step:.0f} a step; computing hides {100 * hidden / max(1, whole):.0f} % of their "
        f"{whole / 1e6:.1f} ms"
    ]
    if who.waiting is None:
        evidence.append("waiting for other ranks is in it: it takes the traces of all ranks on one clock to tell")
    evidence += _speed(facts)
    longest = int(talks[np.argmax(timeline.duration_ns[talks])]) if len(talks) else -1
    return [
        Finding(
            kind="transfer", title="communication is not hidden behind computing", rank=who.rank, lost_ns=most,
            share=most / who.window_ns, evidence=tuple(evidence),
            where=_place(timeline, longest) if longest >= 0 else "",
            advice=_transfer_advice(facts, a_step, hidden / max(1, whole)),
        )
    ]  # fmt: skip


def _speed(facts: Facts) -> list[str]:
    """The best and the median bus bandwidth of the matched collectives whose size is known."""
    speeds = []
    for collective in facts.matching.collectives:
        size = size_bytes(facts.timeline, collective)
        algorithm = algorithm_gbps(size, shortest_ns(collective)) if size else None
        speed = bus_gbps(collective_kind(collective.key.name), algorithm, len(collective.ranks)) if algorithm else None
        if speed is not None:
            speeds.append(speed)
    if not speeds:
        return []
    return [f"bus bandwidth {max(speeds):.0f} GB/s at best, {sorted(speeds)[len(speeds) // 2]:.0f} in the middle"]


def _transfer_advice(facts: Facts, a_step: float, hidden_share: float) -> tuple[str, ...]:
    sizes = [size for c in facts.matching.collectives if (size := size_bytes(facts.timeline, c)) is not None]
    small = [size for size in sizes if size < SMALL_BYTES]
    if a_step <= 4 and hidden_share < 0.05:
        return (
            "one bucket holds everything, so nothing can overlap it: smaller buckets, kit.FSDP(bucket_mb=25) or "
            "kit.DDP(bucket_mb=25)",
            "a bigger micro-batch: the transfer stays and the computing grows",
        )
    if len(small) > len(sizes) / 2:
        return ("bucket small collectives together: kit.DDP(bucket_mb=25) or kit.FSDP(bucket_mb=25)",)
    gathers = any(collective_kind(c.key.name) == "allgather" for c in facts.matching.collectives)
    return (
        "kit.compile_step puts collectives into the graph, where they start as early as their input is there",
        *(("kit.FSDP(reshard_after_forward=False) leaves out the second gather, for memory",) if gathers else ()),
        "a bigger micro-batch or accumulation: fewer bytes for each sample",
    )


def invisible(facts: Facts) -> list[Finding]:
    """DDP around compiled code: the all-reduce is issued by hooks outside every compiled graph."""
    timeline = facts.timeline
    note = timeline.category == Category.ANNOTATION
    operator = timeline.category == Category.CPU_OP
    wrapped = note & rows_named(timeline, (name.startswith("DistributedDataParallel") for name in timeline.strings))
    compiled = (note | operator) & rows_named(timeline, map(is_compiled_call, timeline.strings))
    calls = np.flatnonzero(
        operator & rows_named(timeline, (is_collective_call(n) and "wait" not in n for n in timeline.strings))
    )
    if not wrapped.any() or not compiled.any() or not len(calls):
        return []
    inside = enclosing(timeline, calls, compiled) >= 0
    if inside.any():
        return []
    lost = {each.rank: length(each.seen.exposed_communication) for each in facts.ranks}
    who, most = facts.worst(lost)
    names = Counter(timeline.strings[name] for name in timeline.name[calls].tolist())
    return [
        Finding(
            kind="invisible", title="AllReduce is invisible to the compiler", rank=who.rank, lost_ns=most,
            share=most / who.window_ns,
            evidence=(
                f"{int(compiled.sum())} compiled ranges under DistributedDataParallel hold none of the {len(calls)} "
                f"calls of collectives ({', '.join(name for name, _ in names.most_common(2))})",
                "DDP issues them from autograd hooks, so no compiler can move, fuse or bucket them",
            ),
            where=_place(timeline, int(calls[0])),
            advice=("kit.compile_step(model, ..., strategy='ddp'): the same all-reduces inside the one graph",),
        )
    ]  # fmt: skip


def _work(timeline: Timeline) -> NDArray[np.bool_]:
    works = rows_named(timeline, map(is_collective_work, timeline.strings))
    works &= timeline.category == Category.ANNOTATION
    on_host: NDArray[np.bool_] = np.isin(timeline.rank, [part.rank for part in timeline.parts if part.cpu_only])
    return works & on_host


def _place(timeline: Timeline, row: int) -> str:
    return str(place_names(timeline)[row])
