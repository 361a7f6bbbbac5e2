"""The graphs of one step: one for each form of batch, at most as many as were asked for.

A graph holds the shapes of its batch. A step that may have several looks which one fits a call and builds
another when none does. All graphs change the same parameters and state. Ranks must choose alike, or one
would wait in a collective that the others never start: they compare what they were called with at each call.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from kit.step.eager_update import EagerUpdate
from kit.step.guard import Guard, GuardError
from kit.step.lower import Lowered
from kit.step.mesh import Axes, Axis
from kit.step.passes.record import Trials

MOST = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Variant:
    """One graph of a step: what it was traced for and what runs it.

    `held`: the inputs that live from step to step. `trials`: the ways to rewrite it that were timed.
    `eager`: the optimizer's own step after the graph, where the update is not inside.
    """

    guard: Guard
    lowered: Lowered
    held: tuple[torch.Tensor, ...]
    run: Callable[..., Any]
    trials: Trials | None = None
    eager: EagerUpdate | None = None


class Variants:
    """The graphs of a step, the first one first; `build(window)` makes another."""

    def __init__(self, first: Variant, *, limit: int, build: Callable[[list[Any]], Variant]) -> None:
        self.built = [first]
        self.limit = limit
        self._build = build

    @property
    def first(self) -> Variant:
        """The graph of the example batch."""
        return self.built[0]

    def for_call(self, window: Sequence[Any], axes: Axes) -> Variant:
        """The variant for a window of micro-batches, built when none fits and there is room.

        Raises `GuardError`. A collective call when there may be more than one.
        """
        if self.limit == 1:
            self.first.guard.require(window)
            return self.first
        _require_same_call(self.first.guard, window, axes)
        for variant in self.built:
            if variant.guard.fits(window):
                variant.guard.require_rest()
                return variant
        if len(self.built) == self.limit:
            self._refuse(window)
        self.first.guard.require_rest()
        self.built.append(self._build(list(window)))
        return self.built[-1]

    def _refuse(self, window: Sequence[Any]) -> None:
        try:
            self.first.guard.require(window)
        except GuardError as error:
            raise GuardError(f"{error}. All {self.limit} variants are built, for other batches") from None


def require_variants(variants: object) -> int:
    """How many graphs a step may have. Raises `ValueError`."""
    if not isinstance(variants, int) or isinstance(variants, bool) or not 1 <= variants <= MOST:
        raise ValueError(
            f"variants is {variants!r}; expected 1 to {MOST} graphs. Each is compiled on its own: pad batches to a few "
            "shapes when there are more"
        )
    return variants


def _require_same_call(guard: Guard, window: Sequence[Any], axes: Axes) -> None:
    words = guard.words_of(window)
    digest = int.from_bytes(hashlib.sha256(words.encode()).digest()[:7], "big")
    for axis in axes:
        _compare(digest, words, axis)


def _compare(digest: int, words: str, axis: Axis) -> None:
    mine = torch.tensor([digest], device=axis.mesh.device_type)
    everybody = [torch.empty_like(mine) for _ in range(axis.size)]
    group = axis.mesh.get_group()
    dist.all_gather(everybody, mine, group=group)
    if len({int(one) for one in everybody}) == 1:
        return
    all_words: list[str] = [""] * axis.size
    dist.all_gather_object(all_words, words, group=group)
    seen = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(all_words))
    raise GuardError(
        f"ranks were called with different batches: {seen}. Every rank runs the same graph: pass batches of one form, "
        "pad or drop the odd one"
    )
