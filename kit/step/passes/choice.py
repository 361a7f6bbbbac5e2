"""Which passes a step gets, by name: those of its strategy, or those a person chose."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kit.step.passes.bucket import bucket_gathers, bucket_reductions
from kit.step.passes.hoist import hoist_preparations
from kit.step.passes.overlap import (
    has_early_gathers,
    has_gathers_in_flight,
    start_gathers_early,
    wait_before_next_gather,
)
from kit.step.passes.prune import prune
from kit.step.passes.reshard import reshard_after_forward
from kit.step.strategy import DDP, Strategy, data_of

Pass = Callable[[torch.fx.GraphModule], None]


class PassNameError(ValueError):
    """A pass that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One pass: its name, what it does to a graph, and the bytes by which it may raise the peak on purpose.

    `applies`: whether there is anything to do in a graph; cheap, and it saves the copy and the proofs.
    """

    name: str
    run: Pass
    may_add_bytes: float = 0.0
    applies: Callable[[torch.fx.GraphModule], bool] = lambda module: True


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How a traced step is rewritten.

    `passes`: names in order, None for those of the strategy. `bucket_mb`: as in the strategies.
    `check_values`: compare results on real tensors after each pass; None does so while the step is small.
    `refused`: passes that failed their proof on another rank, whose tensors are others.
    """

    name: str = "default"
    passes: tuple[str, ...] | None = None
    bucket_mb: float | None
    check_values: bool | None = None
    refused: tuple[str, ...] = ()


def changes_of(strategy: Strategy, choice: Choice, *, ranks: int) -> list[Change]:
    """The passes that were chosen, in order.

    `ranks`: those that share a parameter; a bucket of gathers comes out that many times larger than it
    goes in. Raises `PassNameError` that lists the names.
    """
    limit = None if choice.bucket_mb is None else choice.bucket_mb * 1e6
    room = limit or 0.0
    # A bucket is packed, sent and unpacked: up to three copies of it, and the one before may still be read.
    known = [
        Change(name="prune", run=prune),
        Change(name="hoist preparations", run=hoist_preparations),
        Change(name="bucket reductions", run=lambda gm: bucket_reductions(gm, limit), may_add_bytes=4 * room),
        Change(name="bucket gathers", run=lambda gm: bucket_gathers(gm, limit), may_add_bytes=4 * ranks * room),
        Change(name="reshard after forward", run=reshard_after_forward, may_add_bytes=4 * ranks * room),
        Change(
            name="start gathers early",
            run=start_gathers_early,
            may_add_bytes=4 * ranks * room,
            applies=has_early_gathers,
        ),
    ]
    # No matter what was chosen: without it a step could crash.
    last = Change(name="wait before next gather", run=wait_before_next_gather, applies=has_gathers_in_flight)
    if choice.passes is not None:
        return [*_named(choice.passes, known), last]
    skip = set()
    data = data_of(strategy)
    if isinstance(data, DDP):
        skip = {"bucket gathers", "reshard after forward", "start gathers early"}
    elif not data.reshard_after_forward:
        skip = {"reshard after forward"}
    return [*(change for change in known if change.name not in skip), last]


def _named(names: Sequence[str], known: Sequence[Change]) -> list[Change]:
    by_name = {change.name: change for change in known}
    listed = ", ".join(map(repr, by_name))
    for name in names:
        if name not in by_name:
            raise PassNameError(
                f"pass {name!r} is not known; expected passes='default', 'measure' or a list of {listed}"
            )
    return [by_name[name] for name in names]
