"""What a kernel that does the work of several nodes has to move and compute, from the prices of the nodes.

A fused kernel keeps what flows between its nodes in registers, so its bytes are less than the sum over its nodes: each
value read from outside once, each value that something outside reads once. It is a model: what a kernel really moves
can be less (caches) or more (values read twice).
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from kit.graph.record import Graph, Kind

_LOOKUPS = ("embedding", "index", "index_select", "gather", "_unsafe_index", "take")  # as `price` has them
_THROUGH = (Kind.VIEW, Kind.GETITEM, Kind.WAIT)  # their value lies where their input lies


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionCost:
    """Bytes that a region of a graph reads and writes, and its floating point operations."""

    bytes_read: int
    bytes_written: int
    flops: float


def region_cost(graph: Graph, rows: Collection[int], *, made_before: Collection[int] = ()) -> RegionCost:
    """The cost of the nodes `rows` run as one kernel.

    A lookup reads of its table as much as it returns. `made_before`: rows whose values an earlier kernel wrote and
    this one computes again; they are not written twice. Of those, a product (what has operations) is not computed
    again: a compiler splits it into a library's kernel and an end, such as the bias, that it fuses with what follows.
    The end reads the product.
    """
    inside = set(rows)
    ends = {row for row in inside & set(made_before) if graph.flops[row]}
    read = {_value(graph, owner): size for row in ends for owner, size in _made(graph, row)}
    for row in inside - ends:
        if graph.kinds[row] in _THROUGH:
            continue
        inputs = [int(source) for source in graph.edge_from[graph.edge_to == row]]
        lookup = graph.targets[row].split(".")[1:2] and graph.targets[row].split(".")[1] in _LOOKUPS
        for place, source in enumerate(inputs):
            origin = _origin(graph, source, inside)
            if origin in inside or graph.kinds[row] is Kind.OUTPUT:
                continue
            size = int(graph.bytes_out[source])
            read[_value(graph, source)] = min(size, int(graph.bytes_out[row])) if lookup and place == 0 else size
    written = {}
    for row in inside - set(made_before):
        if graph.kinds[row] in _THROUGH or graph.kinds[row] in (Kind.INPUT, Kind.CONSTANT):
            continue
        for owner, size in _made(graph, row):
            if _is_read_outside(graph, owner, inside):
                written[_value(graph, owner)] = size
    written |= _in_place(graph, inside)
    if ends and not written:  # nothing but ends: each is written in its product's place
        written = dict(read)
    flops = float(graph.flops[sorted(inside - ends)].sum()) if inside else 0.0
    return RegionCost(bytes_read=sum(read.values()), bytes_written=sum(written.values()), flops=flops)


def _origin(graph: Graph, row: int, inside: set[int]) -> int:
    """The node that made what `row` shows, through views and items of tuples."""
    while graph.kinds[row] in _THROUGH:
        sources = graph.edge_from[graph.edge_to == row]
        if not len(sources):
            break
        row = int(sources[0])
    return row


def _value(graph: Graph, row: int) -> int:
    """A number for the memory that a node shows: its storage, else (a tuple) itself."""
    storage = int(graph.storage[row])
    return storage if storage >= 0 else -1 - row


def _made(graph: Graph, row: int) -> list[tuple[int, int]]:
    """The values that a node makes, with their bytes: its own, or those of the items taken from its tuple."""
    if graph.bytes_out[row]:
        return [(row, int(graph.bytes_out[row]))]
    items = [int(user) for user in graph.edge_to[graph.edge_from == row]]
    return [(item, int(graph.bytes_out[item])) for item in items if graph.kinds[item] is Kind.GETITEM]


def _is_read_outside(graph: Graph, row: int, inside: set[int]) -> bool:
    for user in graph.edge_to[graph.edge_from == row].tolist():
        if graph.kinds[user] in _THROUGH:
            if _is_read_outside(graph, user, inside):
                return True
        elif user not in inside:
            return True
    return False


def _in_place(graph: Graph, inside: set[int]) -> dict[int, int]:
    """Bytes of the memory that the nodes change in place."""
    size: dict[int, int] = {}
    for row, storage in enumerate(graph.storage.tolist()):
        if storage >= 0:
            size[storage] = max(size.get(storage, 0), int(graph.bytes_out[row]))
    return {storage: size.get(storage, 0) for row, storage in graph.writes if row in inside}


def rows_named(graph: Graph, names: Collection[str]) -> list[int]:
    """Rows of the nodes of these names, in order of the graph; names that it does not have are left out."""
    wanted = set(names)
    return [int(row) for row in np.flatnonzero([name in wanted for name in graph.names])]
