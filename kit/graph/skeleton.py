"""What is grouped when a graph is collapsed: its visible rows, with identical blocks folded to one.

Inputs, constants and the output are no part of it; a fold that would make a cycle is not done.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.graph.fold import Fold, fold_blocks, no_fold
from kit.graph.quotient import topological_order
from kit.graph.record import Graph, Kind

HIDDEN = (Kind.INPUT, Kind.CONSTANT, Kind.OUTPUT)
COMMUNICATION = (Kind.COLLECTIVE, Kind.WAIT)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Skeleton:
    """The graph that is grouped: rows that stand for themselves, in an order that runs, and their edges."""

    graph: Graph
    fold: Fold
    order: NDArray[np.int64]
    edge_from: NDArray[np.int64]
    edge_to: NDArray[np.int64]
    modules: tuple[str, ...]
    parts: NDArray[np.int64]


def skeleton_of(graph: Graph, parts: Sequence[int] | None, *, fold_at_least: int) -> Skeleton:
    """The skeleton of `graph`; `parts` [n] or None, runs of `fold_at_least` blocks fold."""
    hidden = np.array([kind in HIDDEN for kind in graph.kinds], bool)
    if parts is not None:
        hidden |= np.asarray(parts, np.int64) < 0
    rows = np.flatnonzero(~hidden)
    modules = _filled_modules(graph)
    part = np.full(len(graph), -1, np.int64) if parts is None else np.asarray(parts, np.int64)
    lanes = list(zip(graph.phases, part.tolist(), strict=True))
    shown = np.zeros(len(graph), bool)
    shown[rows] = True
    inner = shown[graph.edge_from] & shown[graph.edge_to]
    source, target = graph.edge_from[inner].astype(np.int64), graph.edge_to[inner].astype(np.int64)
    folds = [fold_blocks(graph, rows=rows, lane_of=lanes, modules=modules, at_least=fold_at_least)]
    for fold in [*folds, no_fold(len(graph))]:
        loop = (fold.run[source] >= 0) & (fold.run[source] == fold.run[target])
        loop &= fold.block[source] != fold.block[target]
        ends = np.stack([fold.stands_for[source], fold.stands_for[target]], axis=1)[~loop]
        ends = np.unique(ends, axis=0).reshape(-1, 2)
        order = topological_order(np.unique(fold.stands_for[rows]), ends[:, 0], ends[:, 1])
        if order is not None:  # something outside the blocks stands between them: no fold then
            break
    else:
        raise ValueError(f"graph {graph.name!r} has a cycle; expected the execution order of an FX graph")
    return Skeleton(
        graph=graph, fold=fold, order=order, edge_from=ends[:, 0], edge_to=ends[:, 1], modules=modules, parts=part
    )


def _filled_modules(graph: Graph) -> tuple[str, ...]:
    """Module paths, where communication and views without one take that of their input, then reader."""
    modules = list(graph.modules)
    takes = [not module and kind in (*COMMUNICATION, Kind.VIEW, Kind.GETITEM)
             for module, kind in zip(modules, graph.kinds, strict=True)]  # fmt: skip
    edges = list(zip(graph.edge_from.tolist(), graph.edge_to.tolist(), strict=True))
    edges.sort(key=lambda edge: edge[1])
    for source, target in edges:
        if takes[target] and not modules[target]:
            modules[target] = modules[source]
    for source, target in reversed(edges):
        if takes[source] and not modules[source]:
            modules[source] = modules[target]
    return tuple(modules)
