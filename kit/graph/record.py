"""The Graph record: an FX graph as plain columns.

A graph is kept as numpy columns and strings, not as `torch.fx` objects, so that it can be
made in any rank, sent to the notebook, saved, and drawn years later without torch.
One row is one node, in the order in which the graph runs.
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class Kind(StrEnum):
    """What a node is, as far as cost and drawing care."""

    INPUT = "input"  # a placeholder: parameter, buffer, optimizer state or batch
    CONSTANT = "constant"  # a get_attr that is no parameter
    COMPUTE = "compute"
    VIEW = "view"  # its output shares the storage of an input: moves no bytes
    COLLECTIVE = "collective"
    WAIT = "wait"  # waits for a collective
    GETITEM = "getitem"
    OUTPUT = "output"


class Phase(StrEnum):
    """The part of a training step a node belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """One captured graph of `n` nodes and `m` edges.

    Columns of length n (row = node, in execution order):
    `names`, `targets` (`aten.mm.default`), `kinds`, `phases`, `modules` (dotted module path, "" when
    unknown), `sources` (`file:line: code` of the user's own line, "" when unknown), `shapes`
    (`float32[8, 128]`, "" when not a tensor), `groups` (process group of a collective, else "").
    `bytes_out`: bytes of the value a node makes, 0 when it is not a tensor.
    `bytes_moved`: bytes read and written, 0 for views. `flops`: floating point operations.
    `storage`: values with the same number share memory, -1 when not a tensor.
    `mutates`: storage number that the node writes in place, -1 when none. A node that writes several
    (`aten._foreach_add_`) has the first there and the others in `also_mutates`, pairs (row, storage number).
    `parameter`: the name of the parameter or buffer a node reads as input, else "".

    Columns of length m (row = edge): `edge_from`, `edge_to`, node rows with edge_from < edge_to.
    """

    name: str
    names: tuple[str, ...]
    targets: tuple[str, ...]
    kinds: tuple[Kind, ...]
    phases: tuple[Phase, ...]
    modules: tuple[str, ...]
    sources: tuple[str, ...]
    shapes: tuple[str, ...]
    groups: tuple[str, ...]
    parameter: tuple[str, ...]
    bytes_out: NDArray[np.int64]
    bytes_moved: NDArray[np.int64]
    flops: NDArray[np.float64]
    storage: NDArray[np.int32]
    mutates: NDArray[np.int32]
    edge_from: NDArray[np.int32]
    edge_to: NDArray[np.int32]
    also_mutates: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        n = len(self.names)
        for column in (self.targets, self.kinds, self.phases, self.modules, self.sources, self.shapes,
                       self.groups, self.parameter, self.bytes_out, self.bytes_moved, self.flops,
                       self.storage, self.mutates):  # fmt: skip
            if len(column) != n:
                raise ValueError(f"graph {self.name!r}: a column has {len(column)} rows, expected {n} (one a node)")
        if len(self.edge_from) != len(self.edge_to):
            raise ValueError(
                f"graph {self.name!r}: {len(self.edge_from)} edge starts and {len(self.edge_to)} edge ends, "
                "expected as many of each"
            )
        if len(self.edge_from) and not bool(np.all(self.edge_from < self.edge_to)):
            row = int(np.argmin(self.edge_from < self.edge_to))
            raise ValueError(
                f"graph {self.name!r}: edge {self.edge_from[row]} -> {self.edge_to[row]} runs backwards; "
                "nodes must be in execution order"
            )

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return (
            f"Graph({self.name!r}: {len(self)} nodes, {len(self.edge_from)} edges, "
            f"{self.collective_count} collectives, {self.flops.sum() / 1e6:.4g} MFLOP)"
        )

    @property
    def collective_count(self) -> int:
        """How many collectives the graph starts (waits are not counted)."""
        return sum(kind is Kind.COLLECTIVE for kind in self.kinds)

    @property
    def writes(self) -> tuple[tuple[int, int], ...]:
        """All in-place writes as pairs (row, storage number), in order of rows."""
        first = [(int(row), int(self.mutates[row])) for row in np.flatnonzero(self.mutates >= 0)]
        return tuple(sorted([*first, *self.also_mutates]))

    def count_by_phase(self) -> dict[Phase, int]:
        """Nodes of each phase."""
        counts = Counter(self.phases)
        return {phase: counts[phase] for phase in Phase}
