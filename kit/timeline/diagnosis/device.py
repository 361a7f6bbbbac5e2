"""Rules on the device's own work: copies that nothing hides, recomputation, elementwise kernels that could be one."""

import numpy as np
from numpy.typing import NDArray

from kit.timeline.attribution import place_names
from kit.timeline.copy_bandwidth import copies
from kit.timeline.diagnosis.facts import Facts
from kit.timeline.diagnosis.finding import Finding
from kit.timeline.intervals import length, union
from kit.timeline.kernel_kinds import kernel_kind
from kit.timeline.kinds import device_rows
from kit.timeline.launches import launch_of
from kit.timeline.recomputation import recomputing
from kit.timeline.record import Category, Timeline

_POINTWISE = ("elementwise", "normalisation", "softmax and loss")


def exposed_copies(facts: Facts) -> list[Finding]:
    """Copies and sets while nothing computes or communicates."""
    lost = {each.rank: length(each.seen.exposed_copy) for each in facts.ranks}
    if not lost or not any(lost.values()):
        return []
    who, most = facts.worst(lost)
    timeline = facts.timeline
    rows = [row for row in copies(timeline) if row.rank == who.rank]
    pageable = sum(row.pageable for row in rows)
    mine = np.flatnonzero((timeline.rank == who.rank) & np.isin(timeline.category, (Category.MEMCPY, Category.MEMSET)))
    longest = int(mine[np.argmax(timeline.duration_ns[mine])])
    advice = ["copy while the device computes: non_blocking=True on another stream, one batch ahead"]
    if pageable:
        advice.insert(0, "pin the memory they come from: DataLoader(pin_memory=True) or tensor.pin_memory()")
    return [
        Finding(
            kind="copies", title="copies are not hidden", rank=who.rank, lost_ns=most, share=most / who.window_ns,
            evidence=tuple(
                f"{row.copies} {row.kind}, {row.total_ns / 1e6:.2f} ms"
                + (f", {row.pageable} of them from memory that is not pinned" if row.pageable else "")
                for row in rows[:3]
            ),
            where=str(place_names(timeline)[longest]), advice=tuple(advice),
        )
    ]  # fmt: skip


def recomputes(facts: Facts) -> list[Finding]:
    """Activation checkpointing runs parts of the forward again."""
    timeline = facts.timeline
    again = recomputing(timeline)
    rows = np.flatnonzero((again >= 0) & device_rows(timeline))
    if not len(rows):
        heads = np.flatnonzero(again == np.arange(len(timeline)))
        rows = heads[np.isin(timeline.rank[heads], [part.rank for part in timeline.parts if part.cpu_only])]
    lost = {each.rank: _busy(timeline, rows[timeline.rank[rows] == each.rank]) for each in facts.ranks}
    if not lost or not any(lost.values()):
        return []
    who, most = facts.worst(lost)
    mine = rows[timeline.rank[rows] == who.rank]
    calls = len(np.unique(launch_of(timeline)[mine])) if device_rows(timeline)[mine].any() else len(mine)
    names, often = np.unique(np.array([timeline.strings[n] for n in timeline.name[again[mine]]]), return_counts=True)
    first = names[np.argsort(-often)][:3]
    return [
        Finding(
            kind="recomputation", title="checkpointing runs the forward again", rank=who.rank, lost_ns=most,
            share=most / who.window_ns,
            evidence=(
                f"{calls / max(1, who.steps):.0f} launches a step repeat the forward, mostly {', '.join(first)}",
                "this is the price of the memory it saves, and no fault if the memory is needed",
            ),
            where=str(place_names(timeline)[again[mine[0]]]),
            advice=("checkpoint fewer modules: kit.compile_step(checkpointing='blocks.*') names them",),
        )
    ]  # fmt: skip


def unfused(facts: Facts) -> list[Finding]:
    """Elementwise kernels in a row, each of which reads and writes all of its memory again.

    Lost is, for each run of them, all but the longest: one fused kernel moves about what the largest moves.
    """
    timeline = facts.timeline
    kinds = np.array([kernel_kind(name) for name in timeline.strings], object)
    pointwise = np.isin(kinds.astype(str), _POINTWISE)[timeline.name] & (timeline.category == Category.KERNEL)
    lost, runs = {}, {}
    for each in facts.ranks:
        lost[each.rank], runs[each.rank] = _runs(timeline, each.rank, pointwise)
    if not lost or not any(lost.values()):
        return []
    who, most = facts.worst(lost)
    starts = runs[who.rank]
    longest = max(starts, key=lambda run: run[1])
    return [
        Finding(
            kind="unfused", title="elementwise kernels run one by one", rank=who.rank, lost_ns=most,
            share=most / who.window_ns,
            evidence=(
                f"{len(starts)} runs of two or more; estimated: a fused kernel takes as long as the longest of its run",
            ),
            where=str(place_names(timeline)[longest[0]]),
            advice=("kit.compile_step(executor='inductor') or torch.compile fuses them",),
        )
    ]  # fmt: skip


def _runs(timeline: Timeline, rank: int, pointwise: NDArray[np.bool_]) -> tuple[int, list[tuple[int, int]]]:
    """All but the longest kernel of each run, summed, and (first row, that sum) of each run."""
    rows = np.arange(len(timeline))[timeline.rows_of(rank)]
    rows = rows[timeline.category[rows] == Category.KERNEL]
    rows = rows[np.lexsort((timeline.start_ns[rows], timeline.stream[rows], timeline.device[rows]))]
    if not len(rows):
        return 0, []
    chosen = pointwise[rows]
    same = (timeline.stream[rows][1:] == timeline.stream[rows][:-1]) & (
        timeline.device[rows][1:] == timeline.device[rows][:-1]
    )
    begins = chosen & ~np.append(False, chosen[:-1] & same)
    number = np.cumsum(begins) - 1
    took, number, members = timeline.duration_ns[rows][chosen], number[chosen], rows[chosen]
    if not len(took):
        return 0, []
    first = np.flatnonzero(np.append(True, number[1:] != number[:-1]))
    saved = np.add.reduceat(took, first) - np.maximum.reduceat(took, first)
    found = [(int(members[at]), int(save)) for at, save in zip(first.tolist(), saved.tolist(), strict=True) if save]
    return int(saved.sum()), found


def _busy(timeline: Timeline, rows: NDArray[np.int64]) -> int:
    return length(union(timeline.start_ns[rows], timeline.start_ns[rows] + timeline.duration_ns[rows]))
