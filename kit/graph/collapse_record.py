"""The Collapsed record: a graph made small enough to read.

Each visible node stands for rows of the full graph, so a picture, a table and a click can always get
back to the operators. Nodes are in topological order: an edge runs from a lower to a higher number, so
the record itself is the proof that collapsing made no cycle.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.graph.record import Graph, Kind, Phase


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Collapsed:
    """`k` visible nodes over the `n` rows of `graph`.

    `group` [n]: the visible node of each row, -1 for hidden rows (inputs, constants, the output).
    Columns of length k: `labels` (module path or operator), `modules` (path its rows share),
    `kinds`, `phases`, `parts` (-1 when the graph
    is not cut), `rows` (one row of the full graph that stands for the node: its dearest operator),
    `node_counts` (operators), `repeats` (identical blocks folded into it), `bytes_out` (largest value it
    makes), `flops`, `collectives` (how many it starts), `parameter_bytes` (read by it alone or first).
    Columns of length m: `edge_from`, `edge_to`, `edge_bytes` (distinct values that cross, summed).
    """

    graph: Graph
    group: NDArray[np.int32]
    labels: tuple[str, ...]
    modules: tuple[str, ...]
    kinds: tuple[Kind, ...]
    phases: tuple[Phase, ...]
    parts: NDArray[np.int32]
    rows: NDArray[np.int32]
    node_counts: NDArray[np.int32]
    repeats: NDArray[np.int32]
    bytes_out: NDArray[np.int64]
    flops: NDArray[np.float64]
    collectives: NDArray[np.int32]
    parameter_bytes: NDArray[np.int64]
    edge_from: NDArray[np.int32]
    edge_to: NDArray[np.int32]
    edge_bytes: NDArray[np.int64]

    def __post_init__(self) -> None:
        if not bool(np.all(self.edge_from < self.edge_to)):
            row = int(np.argmin(self.edge_from < self.edge_to))
            raise ValueError(
                f"collapsed {self.graph.name!r}: edge {self.edge_from[row]} -> {self.edge_to[row]} runs backwards; "
                "visible nodes must be in topological order"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Collapsed({self.graph.name!r}: {len(self)} visible of {len(self.graph)} nodes)"
