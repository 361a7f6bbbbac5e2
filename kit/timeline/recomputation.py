"""Launches that activation checkpointing repeats in the backward.

Seen in real profiles of both kinds of `torch.utils.checkpoint` (torch 2.13): inside a node of the backward an operator
carries a sequence number of its own only if autograd records it, which is a forward that runs again. So everything
under such an operator is recomputed. Compiled graphs recompute inside one call and show nothing of it here; the step's
graph does. With `create_graph=True` the backward is recorded as well and would be taken for recomputation.
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.timeline.attribution import module_names
from kit.timeline.kinds import device_rows, rows_named
from kit.timeline.launches import launch_of
from kit.timeline.nesting import enclosing, outermost
from kit.timeline.record import Category, Timeline
from kit.timeline.rows import Measured

_NODE = re.compile(r"\Aautograd::engine::evaluate_function")
_OF_AUTOGRAD = re.compile(r"\Aautograd::|Backward\d*\Z|\Atorch::autograd::")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputedRow:
    """What one operator of a module ran again on one rank.

    `calls` of the operator; `launches` and `events` on the device; `total_ns` device time, on a CPU-only rank the
    operator's own time.
    """

    rank: int
    module: str
    operator: str
    calls: int
    launches: int
    events: int
    total_ns: int


def recomputing(timeline: Timeline) -> NDArray[np.int64]:
    """For each row the outermost operator of a recomputed forward that it belongs to; -1 for all others."""
    operator = timeline.category == Category.CPU_OP
    node = operator & rows_named(timeline, (bool(_NODE.match(name)) for name in timeline.strings))
    own = operator & rows_named(timeline, (not _OF_AUTOGRAD.search(name) for name in timeline.strings))
    numbered = np.flatnonzero(own & (timeline.sequence >= 0))
    again = np.zeros(len(timeline), np.bool_)
    again[numbered[enclosing(timeline, numbered, node) >= 0]] = True
    launch = launch_of(timeline)
    return outermost(timeline, np.where(launch >= 0, launch, np.arange(len(timeline))), again)


def recomputed(timeline: Timeline) -> Measured[RecomputedRow]:
    """What the backward ran again, by rank, module and operator, most time first."""
    roots, launch, modules = recomputing(timeline), launch_of(timeline), module_names(timeline)
    is_device = device_rows(timeline) & (roots >= 0)
    heads = np.flatnonzero((roots >= 0) & (roots == np.arange(len(timeline))))
    rows = []
    keys = np.array([f"{timeline.rank[row]}\0{modules[row]}\0{timeline.strings[timeline.name[row]]}" for row in heads])
    for key in np.unique(keys):
        mine = heads[keys == key]
        events = np.flatnonzero(is_device & np.isin(roots, mine))
        rank, module, operator = str(key).split("\0")
        counted = mine if timeline.part(int(rank)).cpu_only else events
        rows.append(
            RecomputedRow(
                rank=int(rank), module=module, operator=operator, calls=len(mine), events=len(events),
                launches=len(np.unique(launch[events])), total_ns=int(timeline.duration_ns[counted].sum()),
            )
        )  # fmt: skip
    return Measured(name="recomputed", rows=tuple(sorted(rows, key=lambda row: -row.total_ns)))
