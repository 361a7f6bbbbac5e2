"""Cycles and topological orders of a directed graph given as two edge columns.

Contracting nodes can close a cycle; clusters in one cycle must then run together. Recursion is
avoided because chains of many thousand nodes are normal here.
"""

import heapq

import numpy as np
from numpy.typing import NDArray


def adjacency(count: int, start: NDArray[np.int32], end: NDArray[np.int32]) -> list[list[int]]:
    """Successors of each of `count` nodes."""
    following: list[list[int]] = [[] for _ in range(count)]
    for source, node in zip(start.tolist(), end.tolist(), strict=True):
        following[source].append(node)
    return following


def strong_components(count: int, start: NDArray[np.int32], end: NDArray[np.int32]) -> NDArray[np.int32]:
    """Number of the strongly connected component of each node (Tarjan 1972), iteratively."""
    following = adjacency(count, start, end)
    component = [-1] * count
    index = [-1] * count
    low = [0] * count
    open_nodes: list[int] = []
    visited = components = 0
    for root in range(count):
        if index[root] >= 0:
            continue
        walk = [(root, 0)]
        while walk:
            node, edge = walk.pop()
            if edge == 0:
                index[node] = low[node] = visited
                visited += 1
                open_nodes.append(node)
            elif component[following[node][edge - 1]] < 0:
                low[node] = min(low[node], low[following[node][edge - 1]])
            while edge < len(following[node]) and index[following[node][edge]] >= 0:
                if component[following[node][edge]] < 0:
                    low[node] = min(low[node], index[following[node][edge]])
                edge += 1
            if edge < len(following[node]):
                walk += [(node, edge + 1), (following[node][edge], 0)]
            elif low[node] == index[node]:
                while component[node] < 0:
                    component[open_nodes.pop()] = components
                components += 1
    return np.array(component, dtype=np.int32)


def in_topological_order(
    rank: NDArray[np.int64], start: NDArray[np.int32], end: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Position of each node of an acyclic graph: inputs first, of the ready nodes the lowest `rank` first."""
    count = len(rank)
    following = adjacency(count, start, end)
    waits_for = np.bincount(end, minlength=count).tolist()
    ready = [(int(rank[node]), node) for node in range(count) if not waits_for[node]]
    heapq.heapify(ready)
    position = np.full(count, -1, dtype=np.int32)
    placed = 0
    while ready:
        _, node = heapq.heappop(ready)
        position[node] = placed
        placed += 1
        for successor in following[node]:
            waits_for[successor] -= 1
            if not waits_for[successor]:
                heapq.heappush(ready, (int(rank[successor]), successor))
    return position
