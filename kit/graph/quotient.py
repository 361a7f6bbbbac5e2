"""Group the nodes of an acyclic graph so that the groups form an acyclic graph too.

Grouping by a key alone (the module path) makes cycles: a residual addition belongs to the block whose
parts it stands between. So each key is split into segments: r(v) is the largest, over the inputs u of
v, of r(u), plus one where the key changes. Along an edge between groups r then grows, along an edge
inside a group it stays, which is the proof. Segments that can be joined without a cycle are joined
afterwards, as splitting alone cuts more than needed.
"""

from collections import defaultdict
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

JOIN_LIMIT = 1500  # segments; joining keeps a bit set of reachable segments for each


def topological_order(
    rows: NDArray[np.int64], edge_from: NDArray[np.int64], edge_to: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """`rows` so that each comes after its inputs, lowest row first where free; None when there is a cycle."""
    known = set(rows.tolist())
    waiting = dict.fromkeys(known, 0)
    readers: dict[int, list[int]] = defaultdict(list)
    for source, target in zip(edge_from.tolist(), edge_to.tolist(), strict=True):
        readers[source].append(target)
        waiting[target] += 1
    ready = [row for row in known if not waiting[row]]
    heapify(ready)
    order: list[int] = []
    while ready:
        order.append(row := heappop(ready))
        for reader in readers[row]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heappush(ready, reader)
    return np.array(order, np.int64).reshape(-1) if len(order) == len(known) else None


def segments(
    keys: NDArray[np.int64], order: NDArray[np.int64], edge_from: NDArray[np.int64], edge_to: NDArray[np.int64]
) -> NDArray[np.int64]:
    """A group number for each entry of `order`, in an order in which the groups can run.

    `keys` [n by row]; edges name rows. Rows of one group have one key.
    """
    position = np.full(int(order.max(initial=-1)) + 1, -1, np.int64)
    position[order] = np.arange(len(order))
    level = [0] * len(order)
    key = keys[order].tolist()
    starts, ends = position[edge_from], position[edge_to]
    by_end = np.argsort(ends, kind="stable")
    for source, target in zip(starts[by_end].tolist(), ends[by_end].tolist(), strict=True):
        reached = level[source] + (key[source] != key[target])
        if reached > level[target]:
            level[target] = reached
    pairs = np.stack([np.array(level, np.int64).reshape(-1), keys[order]], axis=1)
    _, first, group = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    # Number groups by level, then by first row, so that the order reads like the program.
    rank = np.empty(len(first), np.int64)
    rank[np.lexsort((order[first], pairs[first, 0]))] = np.arange(len(first))
    return rank[group]


def join_segments(
    group: NDArray[np.int64], key_of: NDArray[np.int64], edges: set[tuple[int, int]]
) -> NDArray[np.int64]:
    """Join neighbouring segments of one key wherever no cycle arises; groups are renumbered to run in order.

    `group` [entries], `key_of` [groups], `edges` between different groups. More than `JOIN_LIMIT` groups
    are returned as they are.
    """
    count = len(key_of)
    if count > JOIN_LIMIT:
        return group
    readers: list[set[int]] = [set() for _ in range(count)]
    for source, target in edges:
        readers[source].add(target)
    reach = [0] * count
    for number in range(count - 1, -1, -1):
        for reader in readers[number]:
            reach[number] |= reach[reader] | 1 << reader
    parent = list(range(count))
    newest: dict[int, int] = {}
    for number in range(count):
        earlier = newest.get(int(key_of[number]))
        if earlier is None or not _can_join(earlier, number, readers, reach, parent):
            newest[int(key_of[number])] = number
            continue
        _join(earlier, number, readers, reach, parent)
    kept = np.array([_find(parent, number) for number in range(count)], np.int64)
    joined = {(int(kept[a]), int(kept[b])) for a, b in edges if kept[a] != kept[b]}
    ends = np.array(sorted(joined), np.int64).reshape(-1, 2)
    order = topological_order(np.unique(kept), ends[:, 0], ends[:, 1])
    if order is None:  # cannot be: each join was checked
        raise RuntimeError("joining segments made a cycle")
    rank = np.full(count, -1, np.int64)
    rank[order] = np.arange(len(order))
    return rank[kept[group]]


def _find(parent: list[int], number: int) -> int:
    while parent[number] != number:
        parent[number] = parent[parent[number]]
        number = parent[number]
    return number


def _can_join(first: int, second: int, readers: list[set[int]], reach: list[int], parent: list[int]) -> bool:
    """Whether no path leads from one to the other through a third group."""
    for one, other in ((first, second), (second, first)):
        for reader in readers[one]:
            reader = _find(parent, reader)
            if reader not in (one, other) and reach[reader] >> other & 1:
                return False
    return True


def _join(first: int, second: int, readers: list[set[int]], reach: list[int], parent: list[int]) -> None:
    parent[second] = first
    readers[first] |= readers[second]
    both = (reach[first] | reach[second]) & ~(1 << first | 1 << second)
    reach[first] = both
    touched = 1 << first | 1 << second
    for number, reached in enumerate(reach):
        if number != first and reached & touched:
            reach[number] = reached | both | touched
