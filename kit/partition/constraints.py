"""What must stay together: an FX graph contracted into clusters.

Algorithms see clusters only, so no algorithm can break a rule. The rules: a tuple stays with the
nodes that take it apart; a value that is not a tensor stays with its maker and its readers (it cannot
be sent); everything that touches a mutated storage, up to the last mutation, is one cluster; clusters
in a cycle are one. Inputs, parameters and constants belong to no cluster: they are *everywhere*, that
is, each part that reads them holds its own copy and nothing is sent.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntFlag

import numpy as np
from numpy.typing import NDArray

from kit.graph.record import Graph, Kind
from kit.partition.components import in_topological_order, strong_components

# Two runs of these give different values, so a copy of one is not a constant.
_RANDOM = (
    "rand",
    "bernoulli",
    "dropout",
    "multinomial",
    "normal_",
    ".normal",
    "uniform",
    "exponential",
    "poisson",
)


class Origin(IntFlag):
    """What a value is computed from; 0 is a constant."""

    BATCH = 1
    PARAMETER = 2
    WORK = 4  # a node that belongs to one part


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clusters:
    """A graph of n nodes contracted into `count` clusters, numbered in a topological order.

    `cluster_of` [n]: -1 for nodes that are everywhere and for the output.
    Value v is made by node `value_rows[v]` and read by the other clusters
    `readers[reader_start[v]:reader_start[v + 1]]`, ascending. Node `shared_rows[s]` is everywhere and
    needed by the clusters `holders[holder_start[s]:holder_start[s + 1]]`, ascending.
    """

    count: int
    cluster_of: NDArray[np.int32]
    value_rows: NDArray[np.int32]
    reader_start: NDArray[np.int64]
    readers: NDArray[np.int32]
    shared_rows: NDArray[np.int32]
    holder_start: NDArray[np.int64]
    holders: NDArray[np.int32]

    def readers_of(self, value: int) -> NDArray[np.int32]:
        """Clusters that read value number `value`, without its maker."""
        return self.readers[self.reader_start[value] : self.reader_start[value + 1]]

    def holders_of(self, shared: int) -> NDArray[np.int32]:
        """Clusters that need node number `shared` of the shared ones."""
        return self.holders[self.holder_start[shared] : self.holder_start[shared + 1]]


def contract(graph: Graph) -> Clusters:
    """Merge the nodes of a forward graph that no cut may separate."""
    touched = _touch_a_mutated_storage(graph)
    everywhere = _rows_everywhere(graph, {row for rows in touched for row in rows})
    groups = _Groups(len(graph))
    for rows in touched:
        groups.merge(rows)
    _merge_what_cannot_be_sent(graph, everywhere, groups)
    clustered = ~everywhere & np.array([kind is not Kind.OUTPUT for kind in graph.kinds], dtype=bool)
    cluster_of = _number_clusters(graph, clustered, groups)
    value_rows, reader_start, readers = _readers(graph, cluster_of)
    shared_rows, holder_start, holders = _holders(graph, everywhere, cluster_of)
    return Clusters(
        count=int(cluster_of.max(initial=-1)) + 1,
        cluster_of=cluster_of,
        value_rows=value_rows,
        reader_start=reader_start,
        readers=readers,
        shared_rows=shared_rows,
        holder_start=holder_start,
        holders=holders,
    )


def is_batch_input(graph: Graph, row: int) -> bool:
    """Whether the node is an argument of the call, neither parameter nor buffer."""
    return graph.kinds[row] is Kind.INPUT and not graph.parameter[row]


def is_trained(graph: Graph, row: int) -> bool:
    """Whether the node reads a parameter that gets a gradient: a float that is no constant buffer."""
    return bool(graph.parameter[row]) and graph.kinds[row] is Kind.INPUT and is_float(graph.shapes[row])


def is_float(shape: str) -> bool:
    """Whether values of this shape (`float32[8, 128]`) have gradients."""
    return shape.startswith(("float", "bfloat", "complex"))


def _touch_a_mutated_storage(graph: Graph) -> list[list[int]]:
    """For each mutated storage the nodes that make, read or write it, up to its last mutation."""
    last = {storage: row for row, storage in graph.writes}
    touched: dict[int, set[int]] = {storage: set() for storage in last}
    for row, storage in enumerate(graph.storage.tolist()):
        if row <= last.get(storage, -1):
            touched[storage].add(row)
    for row, storage in graph.writes:
        touched[storage].add(row)
    read = graph.storage[graph.edge_from]
    for storage, row in zip(read.tolist(), graph.edge_to.tolist(), strict=True):
        if row <= last.get(storage, -1):
            touched[storage].add(row)
    return [sorted(rows) for rows in touched.values()]


def _rows_everywhere(graph: Graph, pinned: set[int]) -> NDArray[np.bool_]:
    """Which nodes each part may hold a copy of: inputs, constants, views of parameters, sizes."""
    inputs = _inputs_of(graph)
    is_tuple = _is_tuple(graph)
    origins = [Origin(0)] * len(graph)
    everywhere = np.zeros(len(graph), dtype=bool)
    for row, kind in enumerate(graph.kinds):
        origin = Origin(0)
        for source in inputs[row]:
            origin |= origins[source]
        if row in pinned or kind in (Kind.OUTPUT, Kind.COLLECTIVE, Kind.WAIT) or _is_random(graph.targets[row]):
            origin |= Origin.WORK
        elif is_batch_input(graph, row):
            origin |= Origin.BATCH
        elif is_trained(graph, row):
            origin |= Origin.PARAMETER
        elif not origin & Origin.WORK and inputs[row]:
            is_view = kind is Kind.VIEW and origin == Origin.PARAMETER
            is_number = graph.storage[row] < 0 and not is_tuple[row]
            if origin and not is_view and not is_number:
                origin |= Origin.WORK
        origins[row] = origin
        everywhere[row] = not origin & Origin.WORK
    return everywhere


def _is_random(target: str) -> bool:
    return any(word in target for word in _RANDOM)


def _is_tuple(graph: Graph) -> NDArray[np.bool_]:
    """Nodes whose value a getitem takes apart."""
    found = np.zeros(len(graph), dtype=bool)
    takes_apart = np.array([kind is Kind.GETITEM for kind in graph.kinds], dtype=bool)
    found[graph.edge_from[takes_apart[graph.edge_to]]] = True
    return found


def _inputs_of(graph: Graph) -> list[list[int]]:
    inputs: list[list[int]] = [[] for _ in graph.names]
    for source, row in zip(graph.edge_from.tolist(), graph.edge_to.tolist(), strict=True):
        inputs[row].append(source)
    return inputs


def _merge_what_cannot_be_sent(graph: Graph, everywhere: NDArray[np.bool_], groups: "_Groups") -> None:
    """Only tensors can be sent: merge other values with their readers, and numbers with their makers too."""
    is_tuple = _is_tuple(graph)
    for source, row in zip(graph.edge_from.tolist(), graph.edge_to.tolist(), strict=True):
        if everywhere[source] or everywhere[row] or graph.kinds[row] is Kind.OUTPUT:
            continue
        is_number_made = graph.storage[row] < 0 and not is_tuple[row] and graph.bytes_out[row] == 0
        if graph.storage[source] < 0 or (is_number_made and graph.mutates[row] < 0):
            groups.merge((source, row))


class _Groups:
    """Disjoint sets of rows."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def merge(self, rows: Iterable[int]) -> None:
        roots = sorted({self.root(row) for row in rows})
        for root in roots[1:]:
            self._parent[root] = roots[0]

    def root(self, row: int) -> int:
        parent = self._parent
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row


def _number_clusters(graph: Graph, clustered: NDArray[np.bool_], groups: _Groups) -> NDArray[np.int32]:
    """Condense cycles of groups, then number topologically, the smallest first node first."""
    cluster_of = np.full(len(graph), -1, dtype=np.int32)
    rows = np.flatnonzero(clustered)
    if not len(rows):
        return cluster_of
    roots = np.array([groups.root(row) for row in rows.tolist()], dtype=np.int32)
    _, cluster_of[rows] = np.unique(roots, return_inverse=True)
    count = int(cluster_of.max()) + 1
    component = strong_components(count, *_edges_between(graph, cluster_of))
    cluster_of[rows] = component[cluster_of[rows]]
    count = int(cluster_of.max()) + 1
    first_row = np.full(count, len(graph), dtype=np.int64)
    np.minimum.at(first_row, cluster_of[rows], rows)
    number = in_topological_order(first_row, *_edges_between(graph, cluster_of))
    cluster_of[rows] = number[cluster_of[rows]]
    return cluster_of


def _edges_between(graph: Graph, cluster_of: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Distinct edges between different clusters."""
    start, end = cluster_of[graph.edge_from], cluster_of[graph.edge_to]
    between = (start >= 0) & (end >= 0) & (start != end)
    pairs = np.unique(np.stack([start[between], end[between]], axis=1), axis=0)
    return pairs[:, 0], pairs[:, 1]


def _readers(
    graph: Graph, cluster_of: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """Values read by another cluster than their own, and those readers."""
    start, end = cluster_of[graph.edge_from], cluster_of[graph.edge_to]
    between = (start >= 0) & (end >= 0) & (start != end)
    pairs = np.unique(np.stack([graph.edge_from[between], end[between]], axis=1), axis=0)
    rows, first = np.unique(pairs[:, 0], return_index=True)
    starts = np.append(first, len(pairs)).astype(np.int64)
    return rows.astype(np.int32), starts, pairs[:, 1].astype(np.int32)


def _holders(
    graph: Graph, everywhere: NDArray[np.bool_], cluster_of: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """Nodes that are everywhere, and the clusters that need them, directly or through another such node."""
    needed_by: dict[int, set[int]] = {row: set() for row in np.flatnonzero(everywhere).tolist()}
    order = np.argsort(-graph.edge_from, kind="stable")
    for source, row in zip(graph.edge_from[order].tolist(), graph.edge_to[order].tolist(), strict=True):
        if source not in needed_by:
            continue
        if row in needed_by:
            needed_by[source] |= needed_by[row]
        elif cluster_of[row] >= 0:
            needed_by[source].add(int(cluster_of[row]))
    _join_tied(graph, needed_by)
    rows = np.array(sorted(needed_by), dtype=np.int32)
    lists = [sorted(needed_by[row]) for row in rows.tolist()]
    starts = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return rows, starts, np.array([cluster for item in lists for cluster in item], dtype=np.int32)


def _join_tied(graph: Graph, needed_by: dict[int, set[int]]) -> None:
    """Two parameter nodes of one storage are one parameter: who needs one holds both."""
    tied: dict[int, list[int]] = {}
    for row in needed_by:
        if graph.parameter[row] and graph.storage[row] >= 0:
            tied.setdefault(int(graph.storage[row]), []).append(row)
    for rows in tied.values():
        together = set().union(*(needed_by[row] for row in rows))
        for row in rows:
            needed_by[row] = together
