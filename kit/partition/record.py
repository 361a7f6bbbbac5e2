"""The Cut record: which part of a cut graph each node belongs to, and what that costs.

Plain data like every record, so that a cut can be saved, compared and drawn without torch and without
the graph it came from; hence it carries the node names and the table of crossing values itself.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

# The two targets written down for a cut; `Cut` says whether they are met.
EDGE_SHARE_TARGET = 0.15
NODE_IMBALANCE_TARGET = 0.12


class Balance(StrEnum):
    """What the parts should have equal amounts of."""

    TIME = "time"
    COUNT = "count"
    MEMORY = "memory"


class CutError(ValueError):
    """A graph that cannot be cut as asked."""


class CyclicCutError(CutError):
    """A cut whose parts cannot run one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A value that one part makes and others read: sent once to each of `to_parts`.

    `bytes_of_value` is one copy; `is_float` says whether a gradient of that size comes back.
    """

    name: str
    shape: str
    bytes_of_value: int
    is_float: bool
    from_part: int
    to_parts: tuple[int, ...]
    module: str
    source: str

    @property
    def bytes_sent(self) -> int:
        """Bytes of all copies, forward."""
        return self.bytes_of_value * len(self.to_parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A parameter or buffer that several parts hold a copy of."""

    name: str
    bytes_of_value: int
    parts: tuple[int, ...]
    is_trained: bool

    def __str__(self) -> str:
        holders = ", ".join(map(str, self.parts))
        if self.is_trained:
            return f"{self.name} is held by parts {holders}: the copy needs a summed gradient"
        return f"{self.name} is held by parts {holders}: a copy without gradient"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """A graph of n nodes cut into `parts` parts that run in the order of their numbers.

    `names` and `part_of` (int32) have a row for each node. `copies` (int32) is the number of parts that
    hold the node: more than 1 for duplicated constants and for inputs that several parts read;
    `part_of` is then the first of them. Every edge runs to the same or a later part.

    `balance` and `eps_asked`: the request. `eps_reached`: max/mean - 1 of the balanced quantity.
    `feasible_parts`: the most parts, up to `parts`, for which `eps_asked` can be met in the orders tried.
    `floor_imbalance`: no cut into `parts` parts can be below it, because of `floor_node`, which alone
    is `floor_share` of the whole. `order`: the topological order that was cut (`fx`, `live bytes`).
    `optimal_for_order`: proved the fewest bytes of all contiguous cuts of that order within the tolerance.

    `bytes_crossing`: forward, one micro-batch, a value counted once for each other part that reads it.
    `bytes_crossing_with_gradients`: float values twice. Time is `modelled` unless it was measured.
    Columns of length `parts`: `seconds`, `bytes_of_memory` (4 x parameters plus what forward writes: a
    model, not a peak), `bytes_of_parameters`, `node_counts`, `bytes_received`, `bytes_sent` (forward).
    `edges_cut` of `edges`: edges between nodes, without those of inputs, duplicated constants and output.
    """

    graph: str
    parts: int
    balance: Balance
    eps_asked: float
    eps_reached: float
    feasible_parts: int
    floor_imbalance: float
    floor_node: str
    floor_share: float
    order: str
    optimal_for_order: bool
    modelled: bool
    bytes_crossing: int
    bytes_crossing_with_gradients: int
    edges_cut: int
    edges: int
    crossings: tuple[Crossing, ...]
    replicas: tuple[Replica, ...]
    names: tuple[str, ...]
    part_of: NDArray[np.int32]
    copies: NDArray[np.int32]
    seconds: NDArray[np.float64]
    bytes_of_memory: NDArray[np.int64]
    bytes_of_parameters: NDArray[np.int64]
    node_counts: NDArray[np.int64]
    bytes_received: NDArray[np.int64]
    bytes_sent: NDArray[np.int64]

    def __post_init__(self) -> None:
        for rows in (len(self.part_of), len(self.copies)):
            if rows != len(self.names):
                raise ValueError(f"cut of {self.graph!r}: {rows} rows in a column, {len(self.names)} names")
        for rows in map(len, (self.seconds, self.bytes_of_memory, self.bytes_of_parameters, self.node_counts,
                              self.bytes_received, self.bytes_sent)):  # fmt: skip
            if rows != self.parts:
                raise ValueError(f"cut of {self.graph!r}: {rows} rows in a column, {self.parts} parts")
        if len(self.part_of) and not (self.part_of.min() >= 0 and self.part_of.max() < self.parts):
            raise ValueError(
                f"cut of {self.graph!r}: parts {self.part_of.min()} to {self.part_of.max()}, "
                f"expected 0 to {self.parts - 1}"
            )
        for crossing in self.crossings:
            if min(crossing.to_parts) <= crossing.from_part:
                raise CyclicCutError(
                    f"cut of {self.graph!r}: {crossing.name} goes from part {crossing.from_part} to part "
                    f"{min(crossing.to_parts)}; parts run in order, so a value may only go to a later part"
                )

    def __repr__(self) -> str:
        name = "stage" if self.parts == 1 else "stages"
        slowest = f"slowest stage {self.time_imbalance:+.1%}".replace("%", " %")
        return (
            f"{self.parts} {name}, {megabytes(self.bytes_crossing)} per micro-batch crosses "
            f"({megabytes(self.bytes_crossing_with_gradients)} with gradients), {slowest}, no cycle"
        )

    @property
    def time_imbalance(self) -> float:
        """max/mean - 1 over the seconds of the parts; 0.0 is perfect."""
        return imbalance(self.seconds)

    @property
    def node_imbalance(self) -> float:
        """max/mean - 1 over the node counts of the parts."""
        return imbalance(self.node_counts)

    @property
    def memory_imbalance(self) -> float:
        """max/mean - 1 over the memory of the parts."""
        return imbalance(self.bytes_of_memory)

    @property
    def edge_share(self) -> float:
        """Cut edges of all edges; 0.0 for a graph without edges."""
        return self.edges_cut / self.edges if self.edges else 0.0

    @property
    def is_within_eps(self) -> bool:
        """Whether the asked imbalance was met."""
        return self.eps_reached <= self.eps_asked + 1e-9

    @property
    def meets_edge_target(self) -> bool:
        """Whether less than 15 % of the edges are cut."""
        return self.edge_share < EDGE_SHARE_TARGET

    @property
    def meets_node_target(self) -> bool:
        """Whether the node counts differ by less than 12 % (rarely wise to ask for: see `balance`)."""
        return self.node_imbalance < NODE_IMBALANCE_TARGET


def imbalance(amounts: NDArray[np.float64] | NDArray[np.int64]) -> float:
    """max/mean - 1 of amounts; 0.0 when all are zero."""
    mean = float(np.mean(amounts))
    return float(np.max(amounts)) / mean - 1.0 if mean else 0.0


def megabytes(count: int) -> str:
    """Bytes in words, MB = 1e6: `18.9 MB`, `4.1 kB`, `12 B`."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
