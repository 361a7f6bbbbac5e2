"""What a partition of clusters costs: from parts of clusters to the Cut record.

Kept apart from the search, so that a partition from anywhere is counted by the same rules and the
search never grades itself.
"""

from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from kit.graph.record import Graph, Kind
from kit.partition.constraints import Clusters, is_float, is_trained
from kit.partition.loads import Amounts, by_cluster, by_part, works
from kit.partition.record import Balance, Crossing, Cut, CyclicCutError, Replica, imbalance


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for, and what the search found out about it; the fields mean what they mean in `Cut`."""

    parts: int
    balance: Balance
    eps_asked: float
    feasible_parts: int
    order: str
    optimal_for_order: bool
    modelled: bool


def assess(
    graph: Graph,
    clusters: Clusters,
    *,
    part_of_cluster: NDArray[np.int32],
    weights: Amounts,
    request: Request,
) -> Cut:
    """Count bytes, loads, edges and copies of a partition.

    Raises `CyclicCutError` when an edge goes back to an earlier part.
    """
    parts = request.parts
    part_of, copies = _parts_of_rows(graph, clusters, part_of_cluster, parts)
    require_forward_edges(graph, part_of)
    crossings = _crossings(graph, clusters, part_of_cluster)
    received, sent = _traffic(crossings, parts)
    edges, edges_cut = _count_edges(graph, clusters, part_of)
    balanced = weights.of(request.balance)
    floor_share, floor_node = _floor(graph, clusters, balanced)
    sums = partial(by_part, clusters=clusters, part_of_cluster=part_of_cluster, parts=parts)
    return Cut(
        **asdict(request),
        graph=graph.name,
        eps_reached=imbalance(sums(balanced)),
        floor_imbalance=max(0.0, floor_share * parts - 1.0),
        floor_node=floor_node,
        floor_share=floor_share,
        bytes_crossing=sum(crossing.bytes_sent for crossing in crossings),
        bytes_crossing_with_gradients=sum(c.bytes_sent * (1 + c.is_float) for c in crossings),
        edges_cut=edges_cut,
        edges=edges,
        crossings=crossings,
        replicas=_replicas(graph, clusters, part_of_cluster),
        names=graph.names,
        part_of=part_of,
        copies=copies,
        seconds=sums(weights.seconds),
        bytes_of_memory=sums(weights.memory).astype(np.int64),
        bytes_of_parameters=sums(weights.parameters).astype(np.int64),
        node_counts=sums(weights.nodes).astype(np.int64),
        bytes_received=received,
        bytes_sent=sent,
    )


def require_forward_edges(graph: Graph, part_of: NDArray[np.int32]) -> None:
    """Raise `CyclicCutError` when an edge goes back to an earlier part; [n] part of each node."""
    back = part_of[graph.edge_from] > part_of[graph.edge_to]
    if bool(back.any()):
        edge = int(np.argmax(back))
        source, row = int(graph.edge_from[edge]), int(graph.edge_to[edge])
        raise CyclicCutError(
            f"cut of {graph.name!r}: edge {graph.names[source]} -> {graph.names[row]} goes from part "
            f"{part_of[source]} back to part {part_of[row]}; parts run in order, so parts must not decrease "
            "along an edge; use kit.cut, which only makes such cuts"
        )


def _parts_of_rows(
    graph: Graph, clusters: Clusters, part_of_cluster: NDArray[np.int32], parts: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Part and number of copies of each node; the output belongs to the last part."""
    inside = clusters.cluster_of >= 0
    part_of = np.zeros(len(graph), dtype=np.int32)
    part_of[inside] = part_of_cluster[clusters.cluster_of[inside]]
    copies = np.ones(len(graph), dtype=np.int32)
    for shared, row in enumerate(clusters.shared_rows.tolist()):
        holders = np.unique(part_of_cluster[clusters.holders_of(shared)])
        if len(holders):
            part_of[row], copies[row] = holders[0], len(holders)
    part_of[[kind is Kind.OUTPUT for kind in graph.kinds]] = parts - 1
    return part_of, copies


def _crossings(graph: Graph, clusters: Clusters, part_of_cluster: NDArray[np.int32]) -> tuple[Crossing, ...]:
    """Values sent, the most bytes first."""
    found = []
    for value, row in enumerate(clusters.value_rows.tolist()):
        maker = int(part_of_cluster[clusters.cluster_of[row]])
        readers = np.unique(part_of_cluster[clusters.readers_of(value)])
        others = tuple(part for part in readers.tolist() if part != maker)
        if others:
            found.append(
                Crossing(
                    name=graph.names[row],
                    shape=graph.shapes[row],
                    bytes_of_value=int(graph.bytes_out[row]),
                    is_float=is_float(graph.shapes[row]),
                    from_part=maker,
                    to_parts=others,
                    module=graph.modules[row],
                    source=graph.sources[row],
                )
            )
    return tuple(sorted(found, key=lambda crossing: -crossing.bytes_sent))


def _traffic(crossings: tuple[Crossing, ...], parts: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Bytes that each part receives and sends, forward."""
    received, sent = np.zeros(parts, dtype=np.int64), np.zeros(parts, dtype=np.int64)
    for crossing in crossings:
        sent[crossing.from_part] += crossing.bytes_sent
        received[list(crossing.to_parts)] += crossing.bytes_of_value
    return received, sent


def _count_edges(graph: Graph, clusters: Clusters, part_of: NDArray[np.int32]) -> tuple[int, int]:
    """Edges between nodes that work, and those of them that are cut."""
    counted = works(graph, clusters)
    inside = counted[graph.edge_from] & counted[graph.edge_to]
    is_cut = inside & (part_of[graph.edge_from] != part_of[graph.edge_to])
    return int(inside.sum()), int(is_cut.sum())


def _floor(graph: Graph, clusters: Clusters, column: NDArray[np.float64]) -> tuple[float, str]:
    """Share of the heaviest cluster in the whole, and its heaviest node with the module that made it."""
    loads = by_cluster(clusters, column)
    total = by_part(column, clusters=clusters, part_of_cluster=np.zeros(clusters.count, dtype=np.int32), parts=1)
    cluster = int(np.argmax(loads))
    rows = np.flatnonzero(clusters.cluster_of == cluster)
    row = int(rows[np.argmax(column[rows])])
    module = graph.modules[row]
    name = f"{graph.names[row]} ({module})" if module else graph.names[row]
    return (float(loads[cluster] / total[0]) if total[0] else 0.0), name


def _replicas(graph: Graph, clusters: Clusters, part_of_cluster: NDArray[np.int32]) -> tuple[Replica, ...]:
    """Parameters and buffers held by several parts; tied ones are one, under all their names."""
    names: dict[int, list[str]] = {}
    found: dict[int, Replica] = {}
    for shared, row in enumerate(clusters.shared_rows.tolist()):
        holders = np.unique(part_of_cluster[clusters.holders_of(shared)])
        if not graph.parameter[row] or len(holders) < 2:
            continue
        storage = int(graph.storage[row])
        names.setdefault(storage, []).append(graph.parameter[row])
        found[storage] = Replica(
            name=" = ".join(dict.fromkeys(names[storage])),
            bytes_of_value=int(graph.bytes_out[row]),
            parts=tuple(holders.tolist()),
            is_trained=is_trained(graph, row),
        )
    return tuple(found.values())
