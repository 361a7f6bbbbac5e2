"""What nodes, clusters and parts weigh: seconds, node counts, memory.

Amounts are kept by node and summed, because a node that is everywhere (a parameter, a constant) weighs
once in each part that needs it, and which parts those are is known only after the cut.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.graph.record import Graph, Kind
from kit.partition.constraints import Clusters, is_batch_input, is_trained
from kit.partition.record import Balance

# Value, gradient and the two moments of Adam.
COPIES_OF_A_TRAINED_PARAMETER = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Amounts:
    """Columns of length n (row = node): `seconds`, `nodes` (0 or 1), `memory` and `parameters` in bytes."""

    seconds: NDArray[np.float64]
    nodes: NDArray[np.int64]
    memory: NDArray[np.int64]
    parameters: NDArray[np.int64]

    def of(self, balance: Balance) -> NDArray[np.float64]:
        """The column that a balance weighs."""
        columns = {Balance.TIME: self.seconds, Balance.COUNT: self.nodes, Balance.MEMORY: self.memory}
        return columns[balance].astype(np.float64)


def amounts(graph: Graph, clusters: Clusters, seconds: NDArray[np.float64]) -> Amounts:
    """Weigh each node; memory counts a storage once, at the first node that has it.

    Memory is a model: 4 x the bytes of trained parameters, the bytes of buffers and constants, and the
    bytes written in forward. Inputs of the batch are not counted.
    """
    _, first_rows = np.unique(graph.storage, return_index=True)
    is_first = np.zeros(len(graph), dtype=bool)
    is_first[first_rows] = True
    is_first &= graph.storage >= 0
    owned = np.zeros(len(graph), dtype=np.int64)
    copies = np.ones(len(graph), dtype=np.int64)
    for row in np.flatnonzero(is_first).tolist():
        owned[row] = graph.bytes_out[row] if graph.parameter[row] else 0
        if is_batch_input(graph, row) or graph.kinds[row] is Kind.OUTPUT:
            copies[row] = 0
        elif is_trained(graph, row):
            copies[row] = COPIES_OF_A_TRAINED_PARAMETER
    return Amounts(
        seconds=seconds,
        nodes=works(graph, clusters).astype(np.int64),
        memory=np.where(is_first, graph.bytes_out, 0) * copies,
        parameters=owned,
    )


def works(graph: Graph, clusters: Clusters) -> NDArray[np.bool_]:
    """The nodes that counts of nodes and edges go by: those of clusters, without what is only read."""
    is_read = np.array([kind in (Kind.INPUT, Kind.CONSTANT) for kind in graph.kinds], dtype=bool)
    is_work: NDArray[np.bool_] = (clusters.cluster_of >= 0) & ~is_read
    return is_work


def by_cluster(clusters: Clusters, column: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums over the nodes of each cluster, without the nodes that are everywhere."""
    inside = clusters.cluster_of >= 0
    sums = np.bincount(clusters.cluster_of[inside], weights=column[inside], minlength=clusters.count)
    return sums.astype(np.float64)


def by_part(
    column: NDArray[np.float64] | NDArray[np.int64],
    *,
    clusters: Clusters,
    part_of_cluster: NDArray[np.int32],
    parts: int,
) -> NDArray[np.float64]:
    """Sums over the nodes that each part holds, its copies of nodes that are everywhere included."""
    inside = clusters.cluster_of >= 0
    part_of_row = part_of_cluster[clusters.cluster_of[inside]]
    sums = np.bincount(part_of_row, weights=column[inside], minlength=parts).astype(np.float64)
    for shared, row in enumerate(clusters.shared_rows.tolist()):
        if column[row]:
            sums[np.unique(part_of_cluster[clusters.holders_of(shared)])] += column[row]
    return sums
