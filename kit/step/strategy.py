"""How a training step is spread over ranks, as plain values.

A strategy says what is kept where and when it is gathered or reduced; it holds no group and no
tensor, so it can be written in a notebook and sent to ranks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kit.step.tensor.styles import Style, StyleError, style_of


class StrategyError(ValueError):
    """A strategy or a mesh that does not exist or does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DDP:
    """Every rank keeps all parameters; gradients are summed over ranks (data parallel).

    `axis`: name of the mesh axis to reduce over, None for a mesh of one axis.
    `bucket_mb`: gradients are sent together up to this many MB (1e6 bytes); None leaves one
    collective for each parameter.
    """

    axis: str | None = None
    bucket_mb: float | None = 25.0

    def __post_init__(self) -> None:
        _require_bucket(self.bucket_mb)


@dataclass(frozen=True, slots=True, kw_only=True)
class FSDP:
    """Every rank keeps a shard (dim 0) of each parameter, its gradient and its optimizer state.

    Parameters are gathered for use. With `reshard_after_forward` the gathered values are freed
    after the forward and gathered again for the backward, as FSDP2 does by default; without it
    they stay until the backward has used them.
    `axis` and `bucket_mb` as in `DDP`; buckets hold gathers and reductions alike.
    """

    reshard_after_forward: bool = True
    axis: str | None = None
    bucket_mb: float | None = 25.0

    def __post_init__(self) -> None:
        _require_bucket(self.bucket_mb)


@dataclass(frozen=True, slots=True, kw_only=True)
class HSDP:
    """Shards within a group of ranks, copies of them between groups (hybrid sharding).

    Parameters are gathered and gradients reduce-scattered over `shard_axis` (within a node), and the
    shards' gradients summed over `replicate_axis` (between nodes). The other settings as in `FSDP`.
    """

    reshard_after_forward: bool = True
    replicate_axis: str = "replicate"
    shard_axis: str = "shard"
    bucket_mb: float | None = 25.0

    def __post_init__(self) -> None:
        _require_bucket(self.bucket_mb)
        if self.replicate_axis == self.shard_axis:
            raise StrategyError(f"both axes are {self.shard_axis!r}, expected two different axes of the mesh")


@dataclass(frozen=True, slots=True, kw_only=True)
class TP:
    """Modules split over ranks (tensor parallel), alone or under DDP or FSDP on a second mesh axis.

    `plan`: patterns of module paths ("blocks.*.qkv", a star is one name between dots) and the style of each:
    - "colwise": a Linear's output features or an Embedding's columns are split; its output stays split (last dim).
    - "rowwise": a Linear's input features are split; takes what "colwise" gives, its output is summed over ranks.
    - "colwise_rep": as colwise, the output is gathered (a head). "rowwise_rep": as rowwise, the input is whole (an
      Embedding split by its rows).
    - "sequence": parameters whole, runs on this rank's part of the sequence (norms).
    - "split_input", "gather_output": where a sequence-parallel region begins (whole input to parts) and ends.
    - or ColwiseParallel, RowwiseParallel, SequenceParallel, PrepareModuleInput, PrepareModuleOutput,
      PrepareModuleInputOutput of `torch.distributed.tensor.parallel`, with layouts Replicate() and Shard(dim).
    `sequence_parallel`: between split modules activations `[batch, sequence, hidden]` are kept as parts of dim 1: what
    colwise takes is gathered, what rowwise gives is reduce-scattered. It changes the strings, no torch object.
    `packed`: pattern of colwise Linears to the number of equal projections their output holds one after another (3 for
    a fused qkv); each is split.
    `axis`: of the mesh, for the parts. `data`: `DDP` or `FSDP` on the other axis. `ranks`: without a mesh, ranks that
    share a split model; then the mesh is (world / ranks, ranks). None is all ranks, or with `data` needs a mesh.
    `verify`: once, on the example batch (the first call of a `kit.compile` module), compare what split modules give
    with the whole model (a forward of the whole, a forward and backward of the split one, in eval mode): a module that
    reshapes by its number of heads would else compute something else without a word.

    Modules see parts: write `view(batch, length, -1, head_dim)`, -1 for the heads. Every rank of a group must be given
    the same batch. Dropout draws the same numbers on the ranks of a group, so each part of split activations gets the
    same mask. Raises `StrategyError`.
    """

    plan: Mapping[str, Any]
    sequence_parallel: bool = False
    packed: Mapping[str, int] = field(default_factory=dict)
    axis: str = "tp"
    data: DDP | FSDP | None = None
    ranks: int | None = None
    verify: bool = True

    def __post_init__(self) -> None:
        if not self.plan:
            raise StrategyError(
                'the plan of TP is empty; expected patterns and styles, such as {"blocks.*.up": "colwise"}'
            )
        if not (self.data is None or isinstance(self.data, DDP | FSDP)):
            raise StrategyError(f"data is {self.data!r}; expected kit.DDP(...), kit.FSDP(...) or None")
        if self.data is not None and self.data.axis == self.axis:
            raise StrategyError(f"TP and its data strategy both name axis {self.axis!r}; expected two axes of the mesh")
        if self.ranks is not None and self.ranks < 1:
            raise StrategyError(f"ranks is {self.ranks}; expected at least 1, or None for all")
        if any(not isinstance(count, int) or count < 1 for count in self.packed.values()):
            raise StrategyError(f"packed is {dict(self.packed)}; expected whole numbers, such as 3 for a fused qkv")
        _ = self.styles

    @property
    def styles(self) -> Mapping[str, Style]:
        """The style of each pattern, strings and torch objects read."""
        try:
            return {p: style_of(style, sequence_parallel=self.sequence_parallel) for p, style in self.plan.items()}
        except StyleError as error:
            raise StrategyError(str(error)) from error

    @property
    def bucket_mb(self) -> float | None:
        """Of the data strategy."""
        return data_of(self).bucket_mb


Strategy = DDP | FSDP | HSDP | TP

BY_NAME: dict[str, type[DDP] | type[FSDP] | type[HSDP]] = {"ddp": DDP, "fsdp": FSDP, "hsdp": HSDP}


def strategy_of(choice: "str | Strategy") -> Strategy:
    """The strategy that a name or a strategy object means.

    Raises `StrategyError` that lists the names.
    """
    if isinstance(choice, DDP | FSDP | HSDP | TP):
        return choice
    if isinstance(choice, str) and choice in BY_NAME:
        return BY_NAME[choice]()
    raise StrategyError(
        f"strategy {choice!r} is not known; expected one of {', '.join(map(repr, BY_NAME))} "
        "or an object such as kit.FSDP(reshard_after_forward=False) or kit.TP(plan=...)"
    )


def data_of(strategy: Strategy) -> DDP | FSDP | HSDP:
    """What a strategy does over its data-parallel ranks: itself, or what stands beside tensor parallelism."""
    if isinstance(strategy, TP):
        return strategy.data or DDP()
    return strategy


def _require_bucket(bucket_mb: float | None) -> None:
    if bucket_mb is not None and not bucket_mb > 0:
        raise StrategyError(f"bucket_mb is {bucket_mb}, expected a number above 0 or None for no bucketing")
