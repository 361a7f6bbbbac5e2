"""How many bytes are alive while a graph runs, told from the record alone.

A storage lives from the node that makes it to the last node that reads it or any view of it, as
torch's generated code frees values. Inputs and constants belong to the caller and live throughout.
What one operator allocates and frees within itself is not in the record and not counted.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kit.graph.record import Graph, Kind


def live_bytes(graph: Graph) -> NDArray[np.int64]:
    """Bytes alive just after each node ran [n], before what it read last is freed; graph order.

    A node that changes its input in place makes no new storage.
    """
    lives = _lifetimes(graph)
    held = np.isin(lives.numbers, graph.storage[_held_by_caller(graph)])
    size = np.where(held | (lives.numbers < 0), 0, lives.size)
    # A storage made by row b and last read by row l adds its bytes at b and takes them off after l.
    change = np.zeros(len(graph) + 1, np.int64)
    np.add.at(change, lives.born, size)
    np.add.at(change, lives.last + 1, -size)
    return np.cumsum(change[:-1]) + int(lives.size[held & (lives.numbers >= 0)].sum())


def peak_bytes(graph: Graph) -> int:
    """The largest number of bytes alive at once, inputs included; 0 for an empty graph."""
    return int(live_bytes(graph).max(initial=0))


def _held_by_caller(graph: Graph) -> NDArray[np.bool_]:
    return np.array([kind in (Kind.INPUT, Kind.CONSTANT) for kind in graph.kinds], bool)


class _Lives(NamedTuple):
    """One row a storage: its number, first row, last row that reads it, bytes."""

    numbers: NDArray[np.int32]
    born: NDArray[np.int64]
    last: NDArray[np.int64]
    size: NDArray[np.int64]


def _lifetimes(graph: Graph) -> _Lives:
    numbers, first, of = np.unique(graph.storage, return_index=True, return_inverse=True)
    maker = _makers(graph)
    last_read = np.arange(len(graph), dtype=np.int64)
    np.maximum.at(last_read, graph.edge_from, graph.edge_to)
    last = first.astype(np.int64)
    # A tuple keeps its items alive, so a reader of the tuple is a reader of each item.
    np.maximum.at(last, of, np.maximum(last_read, last_read[maker]))
    return _Lives(numbers=numbers, born=maker[first], last=last, size=graph.bytes_out[first])


def _makers(graph: Graph) -> NDArray[np.int64]:
    """The row that made the value of each row: of an item taken from a tuple, the tuple's maker."""
    maker = np.arange(len(graph), dtype=np.int64)
    for source, target in zip(graph.edge_from.tolist(), graph.edge_to.tolist(), strict=True):
        if graph.kinds[target] is Kind.GETITEM:
            maker[target] = maker[source]
    return maker
