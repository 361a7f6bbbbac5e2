"""Replays of CUDA graphs: one launch, many kernels, attributed as far as a file allows.

A replay leaves one launch call and no operators, arguments or annotations (facts of this room: 1030 device events on
one correlation). Two things are known of its kernels: the call that replayed them (with its source line when Python
frames were recorded), and their place in the graph, which is the same in every replay. So a kernel can be followed
over replays, and attributed by order to the operators of a capture or of an eager step of the same program, when their
kernel names agree one by one.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.timeline.attribution import operator_names, place_names
from kit.timeline.intervals import length, union
from kit.timeline.kernel_kinds import event_kind
from kit.timeline.launches import is_replayed, launch_of
from kit.timeline.record import Category, Timeline
from kit.timeline.rows import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRow:
    """One replay on one rank: its device events, by kind, and the time from the first start to the last end.

    `delay_ns`: first start - end of the launch call. `same` tells whether its events are those of the first replay of
    the same length, in the same order.
    """

    rank: int
    replay: int
    events: int
    kernels: int
    span_ns: int
    busy_ns: int
    call_ns: int
    delay_ns: int
    same: bool
    kinds: str
    where: str


def replays(timeline: Timeline) -> Measured[ReplayRow]:
    """Every replay of a CUDA graph, in order of rank and time."""
    launch = launch_of(timeline)
    rows = np.flatnonzero(is_replayed(timeline))
    places = place_names(timeline)
    found = []
    for rank in timeline.ranks:
        mine = rows[timeline.rank[rows] == rank]
        firsts: dict[int, NDArray[np.int32]] = {}
        for number, call in enumerate(np.unique(launch[mine]).tolist()):
            events = mine[launch[mine] == call]
            start, end = timeline.start_ns[events], timeline.start_ns[events] + timeline.duration_ns[events]
            names = timeline.name[events]
            first = firsts.setdefault(len(events), names)
            called = int(timeline.start_ns[call] + timeline.duration_ns[call])
            found.append(
                ReplayRow(
                    rank=rank, replay=number, events=len(events),
                    kernels=int((timeline.category[events] == Category.KERNEL).sum()),
                    span_ns=int(end.max() - start.min()), busy_ns=length(union(start, end)),
                    call_ns=int(timeline.duration_ns[call]), delay_ns=int(start.min()) - called,
                    same=bool((np.sort(first) == np.sort(names)).all()), kinds=_kinds(timeline, events),
                    where=str(places[call]),
                )
            )  # fmt: skip
    return Measured(name="replays", rows=tuple(found))


def operators_by_order(replayed: Timeline, eager: Timeline, *, rank: int) -> dict[int, str]:
    """For rows of one rank's first replay the operator that launches the same kernel in `eager`, by order.

    `eager`: a profile of the same step without the graph. Kernels are compared by name on each side's stream with most
    of them, in order of start. Raises `ValueError` at the first kernel that differs: an attribution by order is right
    only when the whole order agrees.
    """
    launch = launch_of(replayed)
    graph = np.flatnonzero(is_replayed(replayed) & (replayed.rank == rank) & (replayed.category == Category.KERNEL))
    if not len(graph):
        raise ValueError(f"rank {rank} replays no CUDA graph; expected a timeline with cudaGraphLaunch calls")
    graph = _main_stream(replayed, graph[launch[graph] == launch[graph].min()])
    theirs = np.arange(len(eager))[eager.rows_of(rank)]
    theirs = _main_stream(eager, theirs[eager.category[theirs] == Category.KERNEL])[: len(graph)]
    operators = operator_names(eager)
    found = {}
    for place, row in enumerate(graph.tolist()):
        name = replayed.strings[replayed.name[row]]
        other = eager.strings[eager.name[theirs[place]]] if place < len(theirs) else "nothing"
        if name != other:
            raise ValueError(
                f"kernel {place} of the replay is {name[:60]!r}, that of the other timeline {other[:60]!r}; expected "
                "one order. Profile the very step that was captured, without the graph, beginning at its first kernel"
            )
        found[row] = str(operators[theirs[place]])
    return found


def _main_stream(timeline: Timeline, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    streams, often = np.unique(timeline.stream[rows], return_counts=True)
    return rows[timeline.stream[rows] == streams[np.argmax(often)]] if len(rows) else rows


def _kinds(timeline: Timeline, events: NDArray[np.int64]) -> str:
    often: Counter[str] = Counter()
    pairs, counts = np.unique(np.stack([timeline.name[events], timeline.category[events]]), axis=1, return_counts=True)
    for (name, category), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
        often[event_kind(timeline.strings[name], category)] += count
    return ", ".join(f"{count} {kind}" for kind, count in often.most_common())
