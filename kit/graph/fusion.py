"""What a fusing compiler leaves of a graph's memory traffic and of its intermediate values. A model.

Inductor joins elementwise work and reductions between two kernels that it cannot open (products, attention,
collectives) into one kernel, which reads each input once and keeps in registers what nobody else reads. Here
all such nodes that hang together and lie behind the same number of opaque nodes make one kernel: on a longest
path that number never falls, so no path leaves such a kernel and comes back.

What it leaves out: a kernel that must read its input twice (a reduction over rows too long for registers), and
work that is computed again rather than kept. So it is a lower bound on bytes, as the roofline is on seconds.
"""

from collections import defaultdict
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kit.graph.record import Graph, Kind

# Nodes with a count of FLOPs are opaque too: matrix products, convolutions, attention.
_OPAQUE = ("scatter", "index_put", "sort", "topk", "embedding_dense_backward", "nonzero", "unique", "cumsum")
_TRANSPARENT = (Kind.VIEW, Kind.GETITEM)
_NOT_KERNELS = (*_TRANSPARENT, Kind.INPUT, Kind.CONSTANT, Kind.OUTPUT)


class Kernels(NamedTuple):
    """A graph as kernels run it, and which rows are the first of a kernel [n]."""

    graph: Graph
    begins: NDArray[np.bool_]


def one_by_one(graph: Graph) -> Kernels:
    """As eager mode runs it: each node that computes is a kernel."""
    return Kernels(graph, np.array([kind is Kind.COMPUTE for kind in graph.kinds], bool))


def fused(graph: Graph) -> Kernels:
    """As a fusing compiler leaves it: the same rows, with less in `bytes_moved` and `bytes_out`.

    A value that lives only inside a kernel has no bytes; what the kernel reads stays alive to its last reader
    (edges are added for it).
    """
    return _Fusion(graph).result()


class _Fusion:
    """One graph while its kernels are found: a union-find over rows; `depth`: opaque rows behind each."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.inputs: list[list[int]] = [[] for _ in graph.names]
        for source, end in zip(graph.edge_from.tolist(), graph.edge_to.tolist(), strict=True):
            self.inputs[end].append(source)
        self.depth = [0] * len(graph)
        self.parent = list(range(len(graph)))
        self._join()
        self.maker, self.made, self.size = self._makers()
        self.readers = self._readers()

    def result(self) -> Kernels:
        graph = self.graph
        inside = {number for number in self.maker if self._is_inside(number)}
        moved, out = graph.bytes_moved.copy(), graph.bytes_out.copy()
        out[np.isin(graph.storage, list(inside))] = 0
        seen: set[tuple[int, int]] = set()
        for row in range(len(graph)):
            if self._fuses(row):
                moved[row] = max(0, int(moved[row]) - self._saved(row, inside, seen))
        until = self._longer_lives(inside)
        lean = replace(
            graph, bytes_moved=moved, bytes_out=out,
            edge_from=np.concatenate([graph.edge_from, np.array(list(until), np.int32)]),
            edge_to=np.concatenate([graph.edge_to, np.array(list(until.values()), np.int32)]),
        )  # fmt: skip
        return Kernels(lean, self._first_rows())

    def _first_rows(self) -> NDArray[np.bool_]:
        begins = np.zeros(len(self.graph), bool)
        seen: set[int] = set()
        for row, kind in enumerate(self.graph.kinds):
            if kind is Kind.COMPUTE and (kernel := self._find(row)) not in seen:
                seen.add(kernel)
                begins[row] = True
        return begins

    def _fuses(self, row: int) -> bool:
        graph = self.graph
        if graph.kinds[row] is not Kind.COMPUTE or graph.flops[row] > 0:
            return False
        return not any(word in graph.targets[row] for word in _OPAQUE)

    def _join(self) -> None:
        """Depths, and the rows that one kernel computes, as a union-find."""
        for row, sources in enumerate(self.inputs):
            transparent = self.graph.kinds[row] in _NOT_KERNELS
            opaque = not transparent and not self._fuses(row)
            self.depth[row] = max((self.depth[source] for source in sources), default=0) + opaque
            if opaque or self.graph.kinds[row] is Kind.OUTPUT:
                continue
            for source in sources:
                if self.depth[source] == self.depth[row] and self._opens(source):
                    self.parent[self._find(source)] = self._find(row)

    def _opens(self, row: int) -> bool:
        """Whether what the row makes can be in the kernel of its reader: fusible work, or a view of it."""
        while self.graph.kinds[row] in _TRANSPARENT and self.inputs[row]:
            row = self.inputs[row][0]
        return self._fuses(row)

    def _find(self, row: int) -> int:
        while self.parent[row] != row:
            self.parent[row] = row = self.parent[self.parent[row]]
        return row

    def _makers(self) -> tuple[dict[int, int], dict[int, list[int]], dict[int, int]]:
        """The fusible row that makes each storage, what such a row makes, and the bytes of each storage."""
        maker: dict[int, int] = {}
        made: dict[int, list[int]] = defaultdict(list)
        size: dict[int, int] = {}
        for row, number in enumerate(self.graph.storage.tolist()):
            if number < 0 or number in size:
                continue
            size[number] = int(self.graph.bytes_out[row])
            source = row
            while self.graph.kinds[source] is Kind.GETITEM:
                source = self.inputs[source][0]
            if self._fuses(source):
                maker[number] = source
                made[source].append(number)
        return maker, made, size

    def _readers(self) -> dict[int, set[int]]:
        readers: dict[int, set[int]] = defaultdict(set)
        for row, sources in enumerate(self.inputs):
            if self.graph.kinds[row] in _TRANSPARENT:
                continue
            for source in sources:
                readers[int(self.graph.storage[source])].add(row)
        return readers

    def _is_inside(self, number: int) -> bool:
        kernel = self._find(self.maker[number])
        return all(self._fuses(row) and self._find(row) == kernel for row in self.readers[number])

    def _saved(self, row: int, inside: set[int], seen: set[tuple[int, int]]) -> int:
        """Bytes that the row alone would move and its kernel does not."""
        graph, kernel, saved = self.graph, self._find(row), 0
        for number, source in {int(graph.storage[s]): s for s in self.inputs[row]}.items():
            made_here = number in self.maker and self._find(self.maker[number]) == kernel
            if made_here or (kernel, number) in seen:
                saved += int(graph.bytes_out[source])
            seen.add((kernel, number))
        return saved + sum(self.size[number] for number in self.made[row] if number in inside)

    def _longer_lives(self, inside: set[int]) -> dict[int, int]:
        """Of each row that a value inside a kernel is made from, the last row that needs it."""
        needed: dict[int, int] = {}  # by the row that makes values inside a kernel
        until: dict[int, int] = {}
        for row in sorted({self.maker[number] for number in inside}, reverse=True):
            rows = {reader for number in self.made[row] if number in inside for reader in self.readers[number]}
            needed[row] = max((needed.get(reader, reader) for reader in rows), default=row)
            for source in self.inputs[row]:
                until[source] = max(until.get(source, -1), needed[row])
        return until
