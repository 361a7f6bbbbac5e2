"""How a training step is spread over ranks, as plain values.

A strategy says what is kept where and when it is gathered or reduced; it holds no group and no
tensor, so it can be written in a notebook and sent to ranks.
"""

from dataclasses import dataclass


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


Strategy = DDP | FSDP | HSDP

BY_NAME: dict[str, type[DDP] | type[FSDP] | type[HSDP]] = {"ddp": DDP, "fsdp": FSDP, "hsdp": HSDP}


def strategy_of(choice: "str | Strategy") -> Strategy:
    """The strategy that a name or a strategy object means.

    Raises `StrategyError` that lists the names.
    """
    if isinstance(choice, DDP | FSDP | HSDP):
        return choice
    if isinstance(choice, str) and choice in BY_NAME:
        return BY_NAME[choice]()
    raise StrategyError(
        f"strategy {choice!r} is not known; expected one of {', '.join(map(repr, BY_NAME))} "
        "or an object such as kit.FSDP(reshard_after_forward=False)"
    )


def _require_bucket(bucket_mb: float | None) -> None:
    if bucket_mb is not None and not bucket_mb > 0:
        raise StrategyError(f"bucket_mb is {bucket_mb}, expected a number above 0 or None for no bucketing")
