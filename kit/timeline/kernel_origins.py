"""A table of kernels with the nodes and the user's lines they come from, their time, and what they achieve.

Bytes and floating point operations are modelled from the nodes' prices (see `Origin`), so rates are achieved useful
work over measured time: a kernel that moves more than it must shows a low rate. Registers, spills and instructions
are those of the compiled artifact, where a folder of artifacts is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.timeline.artifacts import Artifact
from kit.timeline.kernel_calls import KernelCalls, kernel_calls
from kit.timeline.kinds import device_rows
from kit.timeline.launches import launch_of
from kit.timeline.origins import KernelOrigins, Origin
from kit.timeline.record import Timeline
from kit.timeline.rows import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginRow:
    """One kernel call of a compiled graph, over all its runs.

    `events` and `total_ns`: device events (on a CPU rank the host's), all ranks together unless one was asked for.
    `share`: of the time of all calls in this table. `nodes`, `line`, `module`: where it comes from, the first in full
    and how many more. `moved_bytes` of one run (modelled), `moved_gbps` and `tflops` achieved; `bandwidth_share` and
    `flops_share` of the device's ceilings. None: not known.
    """

    kernel: str
    line: str
    module: str
    nodes: str
    events: int
    total_ns: int
    share: float
    mean_ns: int
    moved_bytes: int | None
    moved_gbps: float | None
    tflops: float | None
    bandwidth_share: float | None
    flops_share: float | None
    registers: int | None
    spilled_bytes: int | None
    shared_memory_bytes: int | None
    instructions: str


def origin_table(
    timeline: Timeline,
    origins: KernelOrigins,
    *,
    rank: int | None = None,
    bytes_per_second: float | None = None,
    flops_per_second: float | None = None,
    artifacts: Sequence[Artifact] = (),
) -> Measured[OriginRow]:
    """The calls of compiled graphs that a timeline shows, most time first.

    Raises `KeyError` for a rank that the timeline does not have.
    """
    found = kernel_calls(timeline, origins)
    rows = _rows_with_time(timeline, found, rank)
    call = found.call[rows]
    count = sum(len(graph.calls) for graph in origins.graphs)
    events = np.bincount(call, minlength=count)
    total = np.bincount(call, weights=timeline.duration_ns[rows].astype(np.float64), minlength=count).astype(np.int64)
    whole = int(total.sum())
    compiled = _by_kernel(artifacts)
    runs = _runs_of(timeline, found, rows)
    calls = [call for graph in origins.graphs for call in graph.calls]
    table = [
        _row(
            calls[n], int(events[n]), int(total[n]), whole, int(runs[n]), compiled.get(calls[n].kernel),
            bytes_per_second, flops_per_second,
        )
        for n in np.argsort(-total, kind="stable").tolist()
        if events[n]
    ]  # fmt: skip
    return Measured(name="kernel origins", rows=tuple(table), notes=_notes(timeline, origins, found, rank, whole))


def _rows_with_time(timeline: Timeline, found: KernelCalls, rank: int | None) -> NDArray[np.int64]:
    """Attributed rows whose time counts: device events, and operators of ranks that have no device."""
    bare = [part.rank for part in timeline.parts if part.cpu_only]
    counts = device_rows(timeline) | np.isin(timeline.rank, bare)
    if rank is not None:
        timeline.part(rank)
        counts &= timeline.rank == rank
    return np.flatnonzero(counts & (found.call >= 0))


def _runs_of(timeline: Timeline, found: KernelCalls, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each call ran: its events come from so many launches of its range, else from so many replays."""
    call, launch = found.call[rows], launch_of(timeline)[rows]
    launched = np.unique(np.stack((call, launch))[:, launch >= 0], axis=1)[0]
    count = 1 + int(found.call.max(initial=0))
    launches = np.bincount(launched, minlength=count) + np.bincount(call[launch < 0], minlength=count)
    host = (found.call >= 0) & ~device_rows(timeline) & np.isin(timeline.rank, np.unique(timeline.rank[rows]))
    hosted = np.bincount(found.call[host], minlength=count)
    return np.where(hosted > 0, hosted, launches)


def _row(
    call: Origin,
    events: int,
    total_ns: int,
    whole_ns: int,
    runs: int,
    artifact: Artifact | None,
    bytes_per_second: float | None,
    flops_per_second: float | None,
) -> OriginRow:
    seconds = total_ns / 1e9
    priced = call.bytes_read >= 0
    moved = call.bytes_read + call.bytes_written if priced else None
    rate = moved * runs / seconds if moved is not None and seconds else None
    speed = call.flops * runs / seconds if priced and seconds else None
    return OriginRow(
        kernel=call.kernel, line=_first_of(tuple(map(_short, call.lines))), module=_first_of(call.modules),
        nodes=_first_of(call.nodes, 3),
        events=events, total_ns=total_ns, share=total_ns / whole_ns if whole_ns else 0.0, mean_ns=total_ns // events,
        moved_bytes=moved,
        moved_gbps=None if rate is None else rate / 1e9,
        tflops=None if speed is None else speed / 1e12,
        bandwidth_share=None if rate is None or not bytes_per_second else rate / bytes_per_second,
        flops_share=None if speed is None or not flops_per_second else speed / flops_per_second,
        registers=artifact.registers if artifact else None,
        spilled_bytes=artifact.stack_bytes if artifact else None,
        shared_memory_bytes=artifact.shared_bytes if artifact else None,
        instructions=artifact.words if artifact else "",
    )  # fmt: skip


def _short(line: str) -> str:
    """`train.py:12: code` of a line with its whole path, so that a table holds it."""
    path, separator, rest = line.partition(".py:")
    return path.rpartition("/")[2] + separator + rest if separator else line


def _first_of(words: tuple[str, ...], most: int = 1) -> str:
    more = len(words) - most
    return ", ".join(words[:most]) + (f" and {more} more" if more > 0 else "")


def _by_kernel(artifacts: Sequence[Artifact]) -> dict[str, Artifact]:
    """Artifacts by name; a kernel that was compiled in several ways is left out, as the file does not say which ran."""
    found: dict[str, list[Artifact]] = {}
    for artifact in artifacts:
        found.setdefault(artifact.name, []).append(artifact)
    return {name: ways[0] for name, ways in found.items() if len(ways) == 1}


def _notes(
    timeline: Timeline, origins: KernelOrigins, found: KernelCalls, rank: int | None, whole_ns: int
) -> tuple[str, ...]:
    notes = [*origins.notes]
    if not whole_ns:
        notes.append(
            "no kernel of these graphs is in this timeline: their ranges (## Call CompiledFxGraph <key> ##) or names "
            "are not in it. Profile the same step, in the same process, after its first call"
        )
    if found.unmatched:
        shown = "; ".join(found.unmatched[:5]) + ("; ..." if len(found.unmatched) > 5 else "")
        notes.append(f"not attributed, as the number of events is not that of the calls: {shown}")
    device = device_rows(timeline) & ((timeline.rank == rank) if rank is not None else True)
    all_ns = int(timeline.duration_ns[device].sum())
    if whole_ns and all_ns:
        notes.append(f"{100 * whole_ns / all_ns:.1f} % of the device time is in this table")
    return tuple(notes)
