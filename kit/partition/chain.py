"""Clusters laid in one order, and the two orders that are tried.

A contiguous part is an interval [i, j) of positions. What an interval reads from before it and what it
weighs both grow by known steps when j grows, so each step is stored with the position it depends on:
an interval that starts after that position pays, one that starts before it has paid already.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.partition.constraints import Clusters


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """Amounts that position j adds to each interval [i, j + 1) with `after[s]` < i <= j.

    Those of position j are `after[start[j]:start[j + 1]]` and `amounts[...]` likewise.
    """

    start: NDArray[np.int64]
    after: NDArray[np.int64]
    amounts: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chain:
    """n clusters in one order.

    `order` [n]: the cluster at each position. `loads` [n]: what the position itself weighs.
    `shared_loads`: what is weighed once an interval, however many of its positions need it.
    `reads`: bytes that an interval reads from before its start, each value once.
    """

    order: NDArray[np.int32]
    loads: NDArray[np.float64]
    shared_loads: Steps
    reads: Steps

    def __len__(self) -> int:
        return len(self.order)


def lay(
    clusters: Clusters,
    *,
    order: NDArray[np.int32],
    loads: NDArray[np.float64],
    loads_of_shared: NDArray[np.float64],
    bytes_of_values: NDArray[np.int64],
) -> Chain:
    """The clusters in `order`, with loads of each cluster and of each shared node."""
    position = np.empty(clusters.count, dtype=np.int64)
    position[order] = np.arange(clusters.count)
    return Chain(
        order=order,
        loads=loads[order],
        shared_loads=_steps(clusters.count, _holder_steps(clusters, position, loads_of_shared)),
        reads=_steps(clusters.count, _reader_steps(clusters, position, bytes_of_values)),
    )


def _reader_steps(
    clusters: Clusters, position: NDArray[np.int64], bytes_of_values: NDArray[np.int64]
) -> Iterable[tuple[int, int, float]]:
    makers = position[clusters.cluster_of[clusters.value_rows]].tolist()
    for value, (before, amount) in enumerate(zip(makers, bytes_of_values.tolist(), strict=True)):
        for reader in np.sort(position[clusters.readers_of(value)]).tolist():
            yield reader, before, amount
            before = reader


def _holder_steps(
    clusters: Clusters, position: NDArray[np.int64], loads_of_shared: NDArray[np.float64]
) -> Iterable[tuple[int, int, float]]:
    for shared in np.flatnonzero(loads_of_shared).tolist():
        before = -1
        for holder in np.sort(position[clusters.holders_of(shared)]).tolist():
            yield holder, before, float(loads_of_shared[shared])
            before = holder


def _steps(count: int, steps: Iterable[tuple[int, int, float]]) -> Steps:
    """Sort (position, after, amount) by position."""
    table = np.array(list(steps), dtype=np.float64).reshape(-1, 3)
    table = table[np.argsort(table[:, 0], kind="stable")]
    return Steps(
        start=np.searchsorted(table[:, 0], np.arange(count + 1)),
        after=table[:, 1].astype(np.int64),
        amounts=table[:, 2],
    )


def order_by_live_bytes(clusters: Clusters, bytes_of_values: NDArray[np.int64]) -> NDArray[np.int32]:
    """A topological order that greedily keeps few bytes live; of equal clusters the earliest first.

    Of the ready clusters it takes the one whose outputs minus the values read for the last time weigh least.
    """
    walk = _LiveBytes(clusters, bytes_of_values.tolist())
    while walk.ready:
        walk.take_cheapest()
    return np.array(walk.order, dtype=np.int32)


class _LiveBytes:
    """The walk of `order_by_live_bytes`: what is placed, what is ready, what taking it would add."""

    def __init__(self, clusters: Clusters, bytes_of_values: list[int]) -> None:
        self.bytes_of_values = bytes_of_values
        self.left = [set(clusters.readers_of(value).tolist()) for value in range(len(bytes_of_values))]
        self.growth = [0] * clusters.count
        self.waits_for = [0] * clusters.count
        self.made: list[list[int]] = [[] for _ in self.growth]
        self.read: list[list[int]] = [[] for _ in self.growth]
        self.readers = [tuple(readers) for readers in self.left]
        for value, maker in enumerate(clusters.cluster_of[clusters.value_rows].tolist()):
            self.made[maker].append(value)
            self.growth[maker] += bytes_of_values[value]
            for reader in self.readers[value]:
                self.read[reader].append(value)
                self.waits_for[reader] += 1
            if len(self.readers[value]) == 1:
                self.growth[self.readers[value][0]] -= bytes_of_values[value]
        self.ready = [(self.growth[cluster], cluster) for cluster, count in enumerate(self.waits_for) if not count]
        heapq.heapify(self.ready)
        self.placed = [False] * clusters.count
        self.order: list[int] = []

    def take_cheapest(self) -> None:
        """Place the ready cluster that adds the fewest live bytes."""
        growth, cluster = heapq.heappop(self.ready)
        if self.placed[cluster] or growth != self.growth[cluster]:
            return  # an outdated entry; the present one is in the heap too
        self.placed[cluster] = True
        self.order.append(cluster)
        for value in self.read[cluster]:
            self.left[value].discard(cluster)
            if len(self.left[value]) == 1:
                self._cheapen(*self.left[value], by=self.bytes_of_values[value])
        for value in self.made[cluster]:
            for reader in self.readers[value]:
                self.waits_for[reader] -= 1
                if not self.waits_for[reader]:
                    heapq.heappush(self.ready, (self.growth[reader], reader))

    def _cheapen(self, cluster: int, *, by: int) -> None:
        """A cluster has become the last reader of a value of `by` bytes."""
        self.growth[cluster] -= by
        if not self.waits_for[cluster]:
            heapq.heappush(self.ready, (self.growth[cluster], cluster))
