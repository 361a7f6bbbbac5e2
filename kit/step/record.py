"""The Plan record: what a step sends, in the order in which it sends it.

Plain data; made from a step's graph, drawn and compared without torch.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One collective of a step.

    `bytes_in`: what each rank puts in. `nodes_before`: compute nodes that run between the previous
    collective and this one; `nodes_hiding`: compute nodes between its start and its wait, which can
    hide it.
    """

    name: str
    phase: str
    group: str
    bytes_in: int
    dtype: str
    nodes_before: int
    nodes_hiding: int
    module: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One collective on the communication lane, seconds from the start of the step; `exposed` is waited for."""

    name: str
    start: float
    end: float
    exposed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A step on modelled hardware.

    `seconds`: the step. `compute_seconds` and `communication_seconds`: sums of each lane.
    `exposed_seconds`: what compute stands still. `peak_bytes`: by liveness of the graph, without the
    allocator's rounding and the libraries' workspaces.
    """

    hardware: str
    seconds: float
    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float
    peak_bytes: int
    spans: tuple[Span, ...]

    @property
    def exposed_share(self) -> float:
        """Exposed communication as a share of the step, 0 to 1."""
        return self.exposed_seconds / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A step's collectives and sizes.

    `passes`: the rewrites that were applied, in order. `micro_batch_rows`: rows of each micro-batch
    of one rank, in order, so a short one is seen. `parameter_bytes` and `state_bytes`: what this
    rank keeps. `estimate`: times and memory on modelled hardware, where asked for.
    `unused`: parameters that the loss does not depend on; they are not updated.
    """

    strategy: str
    world_size: int
    passes: tuple[str, ...]
    micro_batch_rows: tuple[int, ...]
    sends: tuple[Send, ...]
    node_count: int
    parameter_bytes: int
    state_bytes: int
    unused: tuple[str, ...]
    estimate: Estimate | None = None

    def __repr__(self) -> str:
        return (
            f"Plan({self.strategy} on {self.world_size} ranks: {self.node_count} nodes, {len(self.sends)} collectives, "
            f"{self.bytes_sent / 1e6:.4g} MB put in by each rank, micro-batches {list(self.micro_batch_rows)})"
        )

    @property
    def bytes_sent(self) -> int:
        """Bytes that each rank puts into collectives in one step."""
        return sum(send.bytes_in for send in self.sends)
