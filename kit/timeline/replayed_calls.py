"""Which call of a compiled graph a library's kernel in a replayed CUDA graph is: its place tells, its name does not.

A replay runs kernels in the order in which they were captured, which is the order of the graph's calls. Triton's are
known by name, so what runs between two of them belongs to the calls between theirs: all of it to the one call that
stands there, or one kernel to each of as many calls. Where that does not come out, nothing is attributed. Collectives
run on streams of their own and are left out.
"""

import itertools
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kit.timeline.kinds import communication_kernels
from kit.timeline.launches import launch_of
from kit.timeline.origins import KernelOrigins
from kit.timeline.record import Category, Timeline

# cuBLAS adds up the parts of a product with a second kernel, right after it.
_GOES_WITH_THE_LAST = re.compile(r"splitKreduce_kernel|execute_split_k_kernel")
_COLLECTIVE = "c10d_functional"


def fill_replays(timeline: Timeline, origins: KernelOrigins, call: NDArray[np.int64]) -> None:
    """Fill `call` for kernels of replays that lie between kernels which have their call."""
    rows = np.flatnonzero((timeline.category == Category.KERNEL) & ~communication_kernels(timeline))
    launch = launch_of(timeline)[rows]
    of, inverse, kernels = np.unique(launch, return_inverse=True, return_counts=True)
    many = ((of >= 0) & (kernels > 1))[inverse]  # a plain launch has one kernel
    rows, launch = rows[many], launch[many]
    order = np.lexsort((timeline.start_ns[rows], launch))
    rows, launch = rows[order], launch[order]
    ends = np.cumsum([len(graph.calls) for graph in origins.graphs])
    for replay in np.split(rows, np.flatnonzero(np.diff(launch)) + 1):
        anchors = call[replay][call[replay] >= 0]
        if not len(anchors) or (np.diff(anchors) <= 0).any():
            continue
        graph = int(np.searchsorted(ends, anchors[0], side="right"))
        if anchors[-1] < ends[graph]:
            _fill(timeline, origins, replay, int(ends[graph]) - len(origins.graphs[graph].calls), graph, call)


def _fill(
    timeline: Timeline,
    origins: KernelOrigins,
    replay: NDArray[np.int64],
    first: int,
    graph: int,
    call: NDArray[np.int64],
) -> None:
    """Fill `call` for one replay of one graph, whose calls are numbered from `first`."""
    kernels = [one.kernel for one in origins.graphs[graph].calls]
    places = np.flatnonzero(call[replay] >= 0)
    edges = [(-1, first - 1), *((int(at), int(call[replay[at]])) for at in places), (len(replay), first + len(kernels))]
    for (at, number), (next_at, next_number) in itertools.pairwise(edges):
        found = replay[at + 1 : next_at]
        calls = [n for n in range(number + 1, next_number) if _COLLECTIVE not in kernels[n - first]]
        if not len(found) or not calls:
            continue
        heads = _heads([timeline.strings[name] for name in timeline.name[found]])
        if len(calls) == 1:
            call[found] = calls[0]
        elif heads and heads[0] == 0 and len(calls) == heads[-1] + 1:
            call[found] = np.array(calls)[heads]


def _heads(names: Sequence[str]) -> list[int]:
    """For each kernel the number of those that begin a call, up to it and without it; -1 before the first."""
    starts = [not _GOES_WITH_THE_LAST.search(name) for name in names]
    return [int(n) - 1 for n in np.cumsum(starts)]
