"""Collapse a graph to what a person can read, by phase and module path, without cycles.

From the finest view (each operator) to the coarsest (a node for each phase) the first one with at
most `max_groups` visible nodes is taken. Collectives and waits never join computation, since where
they stand is what one looks for; inputs and constants are hidden behind their readers.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kit.graph.collapse_record import Collapsed
from kit.graph.describe_groups import describe
from kit.graph.quotient import join_segments, segments
from kit.graph.record import Graph, Kind
from kit.graph.skeleton import COMMUNICATION, Skeleton, skeleton_of


def collapse(
    graph: Graph, *, parts: Sequence[int] | None = None, max_groups: int = 120, fold_at_least: int = 3
) -> Collapsed:
    """The collapsed form of `graph`, acyclic, with at most `max_groups` visible nodes.

    `parts`: the part of each node, when the graph is cut; nodes of two parts never join, and those of
    part -1 (constants that each part holds a copy of) are hidden.
    `fold_at_least`: so many identical neighbour blocks fold into one (`x12`).
    Only when even so the limit cannot be kept, stretches of the graph become nodes, and one of them may
    hold computation and collectives together (it then counts its `collectives`).
    Takes time linear in the graph, plus the joining of at most 1500 groups. Raises `ValueError` for a
    limit below 8 or `parts` of another length.
    """
    if max_groups < 8:
        raise ValueError(f"max_groups={max_groups}; expected at least 8, so that each phase can be seen")
    if parts is not None and len(parts) != len(graph):
        raise ValueError(
            f"parts has {len(parts)} entries, the graph {graph.name!r} has {len(graph)} nodes; expected one each"
        )
    skeleton = skeleton_of(graph, parts, fold_at_least=fold_at_least)
    for keys in _views(skeleton, max_groups):
        group = _group(skeleton, keys)
        if int(group.max(initial=-1)) < max_groups:
            return describe(skeleton, group)
    return describe(skeleton, _stretches(skeleton, max_groups))


def _views(skeleton: Skeleton, max_groups: int) -> Iterator[NDArray[np.int64]]:
    """Keys [n] by row, from the finest view to the coarsest.

    A graph without modules has stretches of its order in their place.
    """
    graph, order = skeleton.graph, skeleton.order
    if len(order) <= 3 * max_groups:
        yield _single_operators(skeleton)
    paths = {row: tuple(filter(None, skeleton.modules[row].split("."))) for row in order.tolist()}
    if not any(paths.values()):
        length = -(-len(order) * 4 // max_groups)
        paths = {row: (str(at // length),) for at, row in enumerate(order.tolist())}
    for depth in range(max(map(len, paths.values()), default=0), -1, -1):
        numbers: dict[object, int] = {}
        keys = np.zeros(len(graph), np.int64)
        for row in order.tolist():
            kind, path = graph.kinds[row], paths[row][:depth]
            own = (kind, graph.targets[row], graph.groups[row]) if kind in COMMUNICATION else None
            key = (graph.phases[row], int(skeleton.parts[row]), own, path, int(skeleton.fold.run[row]))
            keys[row] = numbers.setdefault(key, len(numbers))
        yield _with_tuples(graph, keys)


def _single_operators(skeleton: Skeleton) -> NDArray[np.int64]:
    """A key for each operator; views and tuple items, which do nothing, go with their maker or reader."""
    graph = skeleton.graph
    keys = np.arange(len(graph), dtype=np.int64)
    lane = list(zip(graph.phases, skeleton.parts.tolist(), strict=True))
    follows = (Kind.VIEW, Kind.GETITEM)
    free = {row for row in skeleton.order.tolist() if graph.kinds[row] in follows}
    edges = [
        (source, target)
        for source, target in zip(skeleton.edge_from.tolist(), skeleton.edge_to.tolist(), strict=True)
        if lane[source] == lane[target]
    ]
    edges.sort(key=lambda edge: edge[1])
    for source, target in edges:
        if target in free and source not in free and graph.kinds[source] not in COMMUNICATION:
            keys[target] = keys[source]
            free.discard(target)
    for source, target in reversed(edges):
        if source in free and target not in free and graph.kinds[target] not in COMMUNICATION:
            keys[source] = keys[target]
            free.discard(source)
    return _with_tuples(graph, keys)


def _with_tuples(graph: Graph, keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Items of a tuple get the key of the node that made it."""
    for source, target in zip(graph.edge_from.tolist(), graph.edge_to.tolist(), strict=True):
        if graph.kinds[target] is Kind.GETITEM:
            keys[target] = keys[source]
    return keys


def _group(skeleton: Skeleton, keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """The group of each row [n], -1 where none: segments of `keys`, joined again where possible."""
    order = skeleton.order
    group = np.full(len(skeleton.graph), -1, np.int64)
    group[order] = segments(keys, order, skeleton.edge_from, skeleton.edge_to)
    key_of = np.zeros(int(group.max(initial=-1)) + 1, np.int64)
    key_of[group[order]] = keys[order]
    source, target = group[skeleton.edge_from], group[skeleton.edge_to]
    between = np.stack([source, target], axis=1)[source != target]
    edges = set(map(tuple, between.tolist()))
    group[order] = join_segments(group[order], key_of, edges)
    return group


def _stretches(skeleton: Skeleton, max_groups: int) -> NDArray[np.int64]:
    """Consecutive rows as groups, communication apart if that stays within the limit.

    Rows keep their lane when edges never run back from a lane to an earlier one.
    """
    graph, order = skeleton.graph, skeleton.order
    names = {lane: number for number, lane in enumerate(sorted({_lane(skeleton, row) for row in order.tolist()}))}
    lane = np.zeros(len(graph), np.int64)
    lane[order] = [names[_lane(skeleton, row)] for row in order.tolist()]
    if bool(np.all(lane[skeleton.edge_from] <= lane[skeleton.edge_to])):
        order = order[np.argsort(lane[order], kind="stable")]
    kinds = [graph.kinds[row] if graph.kinds[row] in COMMUNICATION else None for row in order.tolist()]
    change = np.ones(len(order), bool)
    change[1:] = np.diff(lane[order]) != 0
    apart = change.copy()
    apart[1:] |= np.array([a is not b for a, b in zip(kinds[1:], kinds[:-1], strict=True)], bool)
    for starts in (apart, change):
        room = max_groups - int(starts.sum())
        if room >= 0:
            break
    else:
        starts, room = np.arange(len(order)) == 0, max_groups - 1
    length = -(-len(order) // (room + 1))
    since = np.arange(len(order)) - np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))
    group = np.full(len(graph), -1, np.int64)
    group[order] = np.cumsum(starts | (since % length == 0)) - 1
    return group


def _lane(skeleton: Skeleton, row: int) -> tuple[int, int]:
    phases = list(type(skeleton.graph.phases[row]))
    return phases.index(skeleton.graph.phases[row]), int(skeleton.parts[row])
