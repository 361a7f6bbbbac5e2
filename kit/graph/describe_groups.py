"""Say what each group of a collapsed graph is: label, kind, counts, bytes."""

from collections import Counter, defaultdict

import numpy as np
from numpy.typing import NDArray

from kit.graph.collapse_record import Collapsed
from kit.graph.fold import folded_name
from kit.graph.record import Graph, Kind, Phase
from kit.graph.skeleton import Skeleton

_SHORT = {
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "native_layer_norm": "layer_norm",
    "native_layer_norm_backward": "layer_norm_backward",
    "embedding_dense_backward": "embedding_backward",
    "scaled_dot_product_attention": "attention",
    "_scaled_dot_product_flash_attention_for_cpu": "attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "attention_backward",
}


def describe(skeleton: Skeleton, group: NDArray[np.int64]) -> Collapsed:
    """The record of a grouping; `group` [n] numbers the rows of `skeleton.order`, in running order."""
    graph, fold = skeleton.graph, skeleton.fold
    count = int(group.max(initial=-1)) + 1
    everywhere = group[fold.stands_for]
    members: list[list[int]] = [[] for _ in range(count)]
    for row in skeleton.order.tolist():
        members[group[row]].append(row)
    real = np.flatnonzero(everywhere >= 0)
    of = everywhere[real]
    source, target = group[skeleton.edge_from], group[skeleton.edge_to]
    edges, edge_bytes = _edges(graph, skeleton.edge_from, source, target)
    dearest = [max(rows, key=lambda row: (graph.flops[row], graph.bytes_moved[row])) for rows in members]
    bytes_out = np.zeros(count, np.int64)
    np.maximum.at(bytes_out, of, graph.bytes_out[real])
    starts = np.array([kind is Kind.COLLECTIVE for kind in graph.kinds], bool)
    paths = [_path(skeleton, rows) for rows in members]
    return Collapsed(
        graph=graph,
        group=everywhere.astype(np.int32),
        labels=tuple(_label(graph, rows, path) for rows, path in zip(members, paths, strict=True)),
        modules=tuple(paths),
        kinds=tuple(_kind(graph, rows) for rows in members),
        phases=tuple(Counter(graph.phases[row] for row in rows).most_common(1)[0][0] for rows in members),
        parts=np.array([skeleton.parts[rows[0]] for rows in members], np.int32).reshape(-1),
        rows=np.array(dearest, np.int32).reshape(-1),
        node_counts=np.array([len(rows) for rows in members], np.int32).reshape(-1),
        repeats=np.array([_repeats(skeleton, rows) for rows in members], np.int32).reshape(-1),
        bytes_out=bytes_out,
        flops=np.bincount(of, weights=graph.flops[real], minlength=count).astype(np.float64),
        collectives=np.bincount(of, weights=starts[real], minlength=count).astype(np.int32),
        parameter_bytes=_parameter_bytes(graph, everywhere, count),
        edge_from=edges[:, 0].astype(np.int32),
        edge_to=edges[:, 1].astype(np.int32),
        edge_bytes=edge_bytes,
    )


def _edges(
    graph: Graph, rows: NDArray[np.int64], source: NDArray[np.int64], target: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(pairs of groups [m, 2], bytes [m]); a value that several rows of a group read counts once."""
    outer = source != target
    values = np.unique(np.stack([source, target, rows], axis=1)[outer], axis=0).reshape(-1, 3)
    pairs, of = np.unique(values[:, :2], axis=0, return_inverse=True)
    total = np.zeros(len(pairs), np.int64)
    np.add.at(total, of.reshape(-1), graph.bytes_out[values[:, 2]])
    return pairs.reshape(-1, 2), total


def _kind(graph: Graph, rows: list[int]) -> Kind:
    kinds = {graph.kinds[row] for row in rows} - {Kind.GETITEM}
    return kinds.pop() if len(kinds) == 1 else Kind.COMPUTE


def _repeats(skeleton: Skeleton, rows: list[int]) -> int:
    run = int(skeleton.fold.run[rows[0]])
    return skeleton.fold.last[run] - skeleton.fold.first[run] + 1 if run >= 0 else 1


def _path(skeleton: Skeleton, rows: list[int]) -> str:
    """The module path that all rows of a group share, with the range of a folded run in it."""
    paths = [skeleton.modules[row].split(".") for row in rows]
    shared = paths[0]
    for path in paths[1:]:
        same = [a == b for a, b in zip(shared, path, strict=False)]
        shared = shared[: same.index(False) if False in same else len(same)]
    name = ".".join(shared)
    run = int(skeleton.fold.run[rows[0]])
    return folded_name(name, skeleton.fold.first[run], skeleton.fold.last[run]) if run >= 0 else name


def operation(target: str) -> str:
    """`aten.mm.default` as `mm`, long names of torch shortened."""
    parts = target.split(".")
    name = parts[1] if len(parts) > 2 else parts[-1]
    return _SHORT.get(name, name)


def _label(graph: Graph, rows: list[int], path: str) -> str:
    """What a node is called: its collectives, its single operator, or its module path."""
    kind = _kind(graph, rows)
    views = (Kind.GETITEM, Kind.VIEW)
    working = Counter(operation(graph.targets[row]) for row in rows if graph.kinds[row] not in views)
    counts = working or Counter(operation(graph.targets[row]) for row in rows)
    name, number = counts.most_common(1)[0]
    if kind in (Kind.COLLECTIVE, Kind.WAIT):
        name = "wait" if kind is Kind.WAIT else name
        return name if number == 1 else f"{number} {name}"
    if counts.total() == 1:
        return name
    if path:
        return path
    if graph.phases[rows[0]] is Phase.OPTIMIZER:
        return "update"
    top = [name for name, _ in counts.most_common(3)]
    return ", ".join(top) + (" …" if len(counts) > 3 else "")


def _parameter_bytes(graph: Graph, group: NDArray[np.int32] | NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Bytes of the parameters and buffers that a group is the first to read, each storage once."""
    first: dict[int, int] = defaultdict(lambda: -1)
    size: dict[int, int] = {}
    for source, target in sorted(
        zip(graph.edge_from.tolist(), graph.edge_to.tolist(), strict=True), key=lambda e: e[1]
    ):
        number = int(graph.storage[source])
        if graph.parameter[source] and group[target] >= 0 and first[number] < 0:
            first[number], size[number] = int(group[target]), int(graph.bytes_out[source])
    total = np.zeros(count, np.int64)
    for number, reader in first.items():
        if reader >= 0:
            total[reader] += size[number]
    return total
