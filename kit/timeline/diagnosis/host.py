"""Rules on idle time: a host that launches late, blocks, or waits for data, and gaps between queued kernels."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from kit.timeline.attribution import operator_names, place_names
from kit.timeline.diagnosis.facts import Facts, RankFacts
from kit.timeline.diagnosis.finding import Finding
from kit.timeline.host_time import host_time
from kit.timeline.idle_causes import UNKNOWN
from kit.timeline.intervals import Spans, covered, length
from kit.timeline.launches import is_replayed, launch_of
from kit.timeline.phases import Phase, phase_of
from kit.timeline.record import Timeline


def late_host(facts: Facts) -> list[Finding]:
    """The device stands idle because the host launches too slowly."""
    lost = {each.rank: length(each.late_host) for each in facts.ranks}
    if not lost or not any(lost.values()):
        return []
    who, most = facts.worst(lost)
    timeline = facts.timeline
    mine = np.arange(len(timeline))[timeline.rows_of(who.rank)]
    events = mine[launch_of(timeline)[mine] >= 0]
    calls = np.unique(launch_of(timeline)[events])
    typical = int(np.median(timeline.duration_ns[events])) if len(events) else 0
    others = [f"rank {rank}: {idle / 1e6:.1f} ms" for rank, idle in lost.items() if rank != who.rank]
    evidence = [
        f"{len(calls) / max(1, who.steps):.0f} launches a step; a device event takes {typical / 1e3:.1f} us (median), "
        f"a launch every {who.window_ns / max(1, len(calls)) / 1e3:.1f} us",
        f"most before {_most(timeline, who, who.late_host, 'phase')} kernels; meanwhile the host spends "
        f"{_doing(timeline, who)}",
        *([f"other ranks, {', '.join(others)}"] if others else []),
    ]
    replays = _replays(timeline, events)
    advice = (
        ("the replays themselves come late: prepare the next batch before the replay, without a synchronise",)
        if replays
        else (
            "one launch for the whole step: kit.compile_step(executor='cuda_graph')",
            "fewer launches: kit.compile_step(executor='inductor') or torch.compile",
            "a bigger micro-batch, so that kernels last longer than their launch; more threads than OMP_NUM_THREADS=1",
        )
    )
    return [
        Finding(
            kind="host", title=f"the device of {who.name} waits for its host", rank=who.rank, lost_ns=most,
            share=most / who.window_ns, evidence=tuple(evidence), where=_most(timeline, who, who.late_host, "place"),
            advice=advice,
        )
    ]  # fmt: skip


def synchronises(facts: Facts) -> list[Finding]:
    """The host blocks until the device is done, and the device stands idle until the next launch."""
    lost = {each.rank: length(each.after_sync) for each in facts.ranks}
    if not lost or not any(lost.values()):
        return []
    who, most = facts.worst(lost)
    timeline = facts.timeline
    names = Counter(timeline.strings[name] for name in timeline.name[who.syncs].tolist())
    operators = Counter(str(name) for name in operator_names(timeline)[who.syncs] if name)
    longest = int(who.syncs[np.argmax(timeline.duration_ns[who.syncs])])
    return [
        Finding(
            kind="synchronise", title="the host blocks until the device is done", rank=who.rank, lost_ns=most,
            share=most / who.window_ns,
            evidence=(
                f"{len(who.syncs)} blocking calls: {', '.join(f'{n} {name}' for name, n in names.most_common(3))}",
                *([f"from {', '.join(name for name, _ in operators.most_common(3))}"] if operators else []),
            ),
            where=str(place_names(timeline)[longest]),
            advice=(
                "leave .item(), .cpu(), print(loss) and torch.cuda.synchronize() out of the step, or call them rarely",
                "copies with non_blocking=True from pinned memory",
            ),
        )
    ]  # fmt: skip


def loading(facts: Facts) -> list[Finding]:
    """The device stands idle while the host loads data."""
    lost = {each.rank: length(each.loading) for each in facts.ranks}
    if not lost or not any(lost.values()):
        return []
    who, most = facts.worst(lost)
    return [
        Finding(
            kind="data", title="the device waits for data", rank=who.rank, lost_ns=most, share=most / who.window_ns,
            evidence=(f"the device is idle {most / 1e6:.1f} ms inside the data loader's range",),
            where=_most(facts.timeline, who, who.loading, "place"),
            advice=("DataLoader(num_workers=, prefetch_factor=, pin_memory=True, persistent_workers=True)",),
        )
    ]  # fmt: skip


def unexplained(facts: Facts) -> list[Finding]:
    """The device stands idle although work had been launched long before, or nobody knows when it was."""
    lost = {each.rank: length(each.unexplained) for each in facts.ranks}
    if not lost or not any(lost.values()):
        return []
    who, most = facts.worst(lost)
    unknown = int((who.gaps.end_ns - who.gaps.start_ns)[who.gaps.cause == UNKNOWN].sum())
    evidence = ["what runs next had been launched before the gap began, and nothing else ended just before it"]
    if unknown:
        evidence.append(f"{unknown / 1e6:.1f} ms of it come before events whose launch is not in the file")
    return [
        Finding(
            kind="unexplained", title="the device stands idle with work queued", rank=who.rank, lost_ns=most,
            share=most / who.window_ns, evidence=tuple(evidence),
            where=_most(facts.timeline, who, who.unexplained, "place"),
            advice=(
                "look at copies and at other processes on the device; a stream may also wait for the host "
                "(cudaStreamWaitEvent, host functions), which the file does not record",
            ),
        )
    ]  # fmt: skip


def between_kernels(facts: Facts) -> list[Finding]:
    """Short gaps between kernels that had been launched in time: too many kernels, not a slow host."""
    lost = {each.rank: length(each.between_kernels) for each in facts.ranks}
    if not lost or not any(lost.values()):
        return []
    who, most = facts.worst(lost)
    gaps = len(who.between_kernels[0])
    timeline = facts.timeline
    mine = np.arange(len(timeline))[timeline.rows_of(who.rank)]
    replayed = _replays(timeline, mine)
    advice: tuple[str, ...] = (
        "fewer, larger kernels: kit.compile_step(executor='inductor'), a fused optimizer, a bigger micro-batch",
    )
    if not replayed:
        advice = (*advice, "kit.compile_step(executor='cuda_graph') shortens the gap between kernels as well")
    return [
        Finding(
            kind="gaps", title="gaps between kernels add up", rank=who.rank, lost_ns=most, share=most / who.window_ns,
            evidence=(
                f"{gaps} gaps of {most / max(1, gaps) / 1e3:.2f} us on average before kernels launched in time",
                *(["they are inside replays of a CUDA graph, so no launch is late"] if replayed else []),
            ),
            where=_most(timeline, who, who.between_kernels, "place"), advice=advice,
        )
    ]  # fmt: skip


def _most(timeline: Timeline, who: RankFacts, lost: Spans, kind: str) -> str:
    """What the kernels after the lost gaps belong to, by most lost time: their phase, or their place."""
    took = covered(lost, who.gaps.start_ns, who.gaps.end_ns)
    rows = who.gaps.row[took > 0]
    words = _phases(timeline, rows) if kind == "phase" else place_names(timeline)[rows]
    total: Counter[str] = Counter()
    for word, cost in zip(words.tolist(), took[took > 0].tolist(), strict=True):
        total[word] += cost
    return total.most_common(1)[0][0] if total else ""


def _doing(timeline: Timeline, who: RankFacts) -> str:
    """What the host does while the device waits for it, the two most."""
    found = host_time(timeline, who.rank, *who.late_host)
    most = sorted(found.items(), key=lambda entry: -entry[1])[:2]
    return ", ".join(f"{took / 1e6:.1f} ms {what}" for what, took in most)


def _replays(timeline: Timeline, rows: NDArray[np.int64]) -> bool:
    """Whether replays of a CUDA graph launched most of what was launched."""
    launched = rows[launch_of(timeline)[rows] >= 0]
    return len(launched) > 0 and float(is_replayed(timeline)[launched].mean()) > 0.5


def _phases(timeline: Timeline, rows: NDArray[np.int64]) -> NDArray[np.object_]:
    return np.array([phase.word for phase in Phase], object)[phase_of(timeline)[rows]]
