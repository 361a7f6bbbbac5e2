"""Which phase of training a row belongs to: data, forward, backward or optimizer.

Evidence, best first, of the host range that issued the row: an `Optimizer.` range; autograd's `evaluate_function`
(or a thread on which autograd alone works); a data loader's range; a range of the user that names a phase
(`## forward ##`); else forward, on a rank that has any of these. A replayed CUDA graph and a file without operators
have no phases, and none is guessed.

A device runs phases one after the other but for communication and copies on streams of their own. So the window is
tiled by phases: a segment begins where the phase of the computing kernels changes.
"""

import re
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kit.timeline.activity import Activity
from kit.timeline.intervals import Spans, union
from kit.timeline.kinds import communication_kernels, device_rows, rows_named
from kit.timeline.launches import launch_of
from kit.timeline.nesting import HOST_CATEGORIES, enclosing
from kit.timeline.record import Category, Timeline


class Phase(IntEnum):
    """A part of a training step; UNKNOWN where the file gives no evidence."""

    UNKNOWN = 0
    DATA = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4

    @property
    def word(self) -> str:
        """The phase in lower case."""
        return self.name.lower()


_OPTIMIZER = re.compile(r"\AOptimizer\.")
_AUTOGRAD = re.compile(r"\Aautograd::engine::evaluate_function")
_LOADER = re.compile(r"\Aenumerate\(DataLoader\)|\A_?\w*DataLoader\w*Iter")
_SAID = (
    (Phase.BACKWARD, re.compile(r"(?<![a-z])backward(?![a-z_])", re.IGNORECASE)),
    (Phase.OPTIMIZER, re.compile(r"(?<![a-z])optimi[sz]er(?![a-z_])|(?<![a-z])zero_grad", re.IGNORECASE)),
    (Phase.FORWARD, re.compile(r"(?<![a-z])forward(?![a-z_])", re.IGNORECASE)),
)
# On a thread where this share of the operators' outermost ranges is autograd's, the rest is autograd's too (hooks).
_AUTOGRAD_THREAD = 0.5


@lru_cache(maxsize=2)  # as `launches.launch_of`
def phase_of(timeline: Timeline) -> NDArray[np.uint8]:
    """The `Phase` of each row: of host rows by the ranges around them, of device rows by their launch call."""
    phase = np.zeros(len(timeline), np.uint8)
    host = np.flatnonzero(np.isin(timeline.category, HOST_CATEGORIES))
    said = _said_by(timeline)
    nearest = enclosing(timeline, host, said > 0)
    phase[host] = np.where(nearest >= 0, said[nearest], Phase.UNKNOWN)
    for lane in _autograd_lanes(timeline, host):
        mine = host[timeline.lane[host] == lane]
        phase[mine[phase[mine] == Phase.UNKNOWN]] = Phase.BACKWARD
    for rank in timeline.ranks:
        mine = host[timeline.rank[host] == rank]
        if (phase[mine] >= Phase.BACKWARD).any():
            phase[mine[phase[mine] == Phase.UNKNOWN]] = Phase.FORWARD
    launch = launch_of(timeline)
    phase[launch >= 0] = phase[launch[launch >= 0]]
    phase.flags.writeable = False
    return phase


def _said_by(timeline: Timeline) -> NDArray[np.uint8]:
    """For each row the phase that its own name says; 0 for none."""
    by_name = np.zeros(len(timeline.strings), np.uint8)
    by_note = np.zeros(len(timeline.strings), np.uint8)
    for number, name in enumerate(timeline.strings):
        if _AUTOGRAD.match(name):
            by_name[number] = Phase.BACKWARD
        elif _OPTIMIZER.match(name):
            by_note[number] = Phase.OPTIMIZER
        elif _LOADER.match(name):
            by_note[number] = Phase.DATA
        else:
            by_note[number] = next((phase for phase, pattern in _SAID if pattern.search(name)), Phase.UNKNOWN)
    note = timeline.category == Category.ANNOTATION
    operator = timeline.category == Category.CPU_OP
    return np.where(note, by_note[timeline.name], np.where(operator, by_name[timeline.name], 0)).astype(np.uint8)


def _autograd_lanes(timeline: Timeline, host: NDArray[np.int64]) -> list[int]:
    operator = host[timeline.category[host] == Category.CPU_OP]
    autograd = rows_named(timeline, (bool(_AUTOGRAD.match(name)) for name in timeline.strings))
    outside = enclosing(timeline, operator, autograd) < 0
    lanes = timeline.lane[operator]
    inside = np.bincount(lanes[~outside], minlength=len(timeline.lanes))
    total = np.bincount(lanes, minlength=len(timeline.lanes))
    return np.flatnonzero((inside > 0) & (inside >= _AUTOGRAD_THREAD * total) & ~_has_steps(timeline)).tolist()


def _has_steps(timeline: Timeline) -> NDArray[np.bool_]:
    """For each lane whether the training loop runs on it: it has marks of steps or of the optimizer."""
    marks = rows_named(timeline, (name.startswith(("ProfilerStep#", "Optimizer.")) for name in timeline.strings))
    marks &= timeline.category == Category.ANNOTATION
    return np.bincount(timeline.lane[marks], minlength=len(timeline.lanes)) > 0


def segments(timeline: Timeline, seen: Activity) -> dict[Phase, Spans]:
    """A rank's window cut by phase: disjoint unions that together cover it.

    A segment runs from the first computing kernel (on a CPU-only rank: operator) of a phase to that of the next.
    """
    rows = np.arange(len(timeline))[timeline.rows_of(seen.rank)]
    if timeline.part(seen.rank).cpu_only:
        rows = rows[timeline.category[rows] == Category.CPU_OP]
    else:
        rows = rows[device_rows(timeline)[rows] & ~communication_kernels(timeline)[rows]]
    rows = rows[(timeline.start_ns[rows] >= seen.start_ns) & (timeline.start_ns[rows] < seen.end_ns)]
    phase = phase_of(timeline)[rows]
    known = phase > 0
    rows, phase = rows[known], phase[known]
    if not len(rows) or seen.end_ns <= seen.start_ns:
        whole = union(np.array([seen.start_ns], np.int64), np.array([seen.end_ns], np.int64))
        return {Phase.UNKNOWN: whole} if len(whole[0]) else {}
    order = np.argsort(timeline.start_ns[rows], kind="stable")
    start, phase = timeline.start_ns[rows][order], phase[order]
    first = np.append(True, phase[1:] != phase[:-1])
    begin, kind = start[first], phase[first]
    begin[0] = seen.start_ns
    end = np.append(begin[1:], seen.end_ns)
    return {Phase(int(value)): union(begin[kind == value], end[kind == value]) for value in np.unique(kind)}
