"""The Plan record: what a step sends, when it would, and whether its order is proved.

Plain data; made from a step's graph, drawn, checked and compared without torch.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One collective of a step.

    `bytes_in`: what each rank puts in. `nodes_before`: compute nodes that run between the previous
    collective and this one; `nodes_hiding`: compute nodes between its start and its wait, which can
    hide it. `parameters`: those whose values or gradients it carries. `ranks`: members of the group.
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
    parameters: tuple[str, ...] = ()
    ranks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One collective on the communication lane, seconds from the start of the step.

    `exposed`: the part of it during which compute stands still.
    """

    name: str
    start: float
    end: float
    exposed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Compute without a break in one phase (forward, backward, optimizer), or `waiting` for a collective.

    Seconds from the start of the step.
    """

    phase: str
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Times that were measured, to be put in place of modelled ones.

    `source`: where they are from, in words. `collectives`: (`all_reduce`, `all_gather` or `reduce_scatter`,
    seconds) of one step, in the order in which it starts them. `compute_seconds`: of one step, None for the model's.
    """

    source: str
    collectives: tuple[tuple[str, float], ...]
    compute_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A step on modelled hardware.

    `seconds`: the step. `compute_seconds` and `communication_seconds`: sums of each lane.
    `exposed_seconds`: what compute stands still. `peak_bytes`: by liveness of the graph, without the
    allocator's rounding and the libraries' workspaces. `spans`: the communication lane, one for each
    of the plan's `sends`; `compute`: the other lane. `sources`: where rates and times are from;
    `measured`: times of this very step stood in for modelled ones.
    """

    hardware: str
    seconds: float
    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float
    peak_bytes: int
    spans: tuple[Span, ...]
    compute: tuple[Block, ...] = ()
    sources: str = ""
    measured: bool = False

    @property
    def exposed_share(self) -> float:
        """Exposed communication as a share of the step, 0 to 1."""
        return self.exposed_seconds / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One node on a path through the graph: its name, operator, phase, module and the user's line."""

    node: str
    target: str
    phase: str
    module: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """Where a rule does not hold: what was found, and the nodes that show it, in the order values flow."""

    what: str
    path: tuple[Place, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule of a step's order: for how many values it was proved, and where it is broken."""

    rule: str
    proved: int
    breaches: tuple[Breach, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What `plan.check()` found; true when every rule holds."""

    findings: tuple[Finding, ...]

    def __bool__(self) -> bool:
        return bool(self.findings) and not any(finding.breaches for finding in self.findings)

    def __repr__(self) -> str:
        broken = [f"{finding.rule} ({len(finding.breaches)})" for finding in self.findings if finding.breaches]
        if broken:
            return f"Check(broken: {', '.join(broken)})"
        return f"Check({len(self.findings)} rules hold, proved for {sum(f.proved for f in self.findings)} values)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A step's collectives and sizes.

    `passes`: the rewrites that were applied, in order. `micro_batch_rows`: rows of each micro-batch
    of one rank, in order, so a short one is seen. `parameter_bytes` and `state_bytes`: what this
    rank keeps. `estimate`: times and memory on modelled hardware, where asked for.
    `unused`: parameters that the loss does not depend on; they are not updated.
    `undone`: passes that failed their proof and were left out, each with the reason.
    `eager_optimizer`: the optimizer whose own step runs after the graph; "" when the update is inside.
    `eager_reason`: why it is not.
    `findings`: what the rules of the step's order say of the graph it was made from.
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
    undone: tuple[str, ...] = ()
    eager_optimizer: str = ""
    eager_reason: str = ""
    findings: tuple[Finding, ...] = ()

    def __repr__(self) -> str:
        after = f", then {self.eager_optimizer} outside the graph" if self.eager_optimizer else ""
        return (
            f"Plan({self.strategy} on {self.world_size} ranks: {self.node_count} nodes, {len(self.sends)} collectives, "
            f"{self.bytes_sent / 1e6:.4g} MB put in by each rank, micro-batches {list(self.micro_batch_rows)}{after})"
        )

    @property
    def bytes_sent(self) -> int:
        """Bytes that each rank puts into collectives in one step."""
        return sum(send.bytes_in for send in self.sends)

    def check(self) -> Check:
        """Whether the step's order is proved, rule by rule, with the path of nodes where it is broken.

        The rules: a value exists and has arrived before it is read; what is computed or gathered again stands before
        the gradient that reads it; each gradient is reduced over each data-parallel group exactly once, before the
        update that uses it; and a parameter is updated only after everything that reads it in this step, so that
        the next gather is of the next step. Found on the graph that runs when the plan was made, and kept in the
        record. Proved is the order and the flow of values, not the arithmetic.
        """
        return Check(findings=self.findings)
