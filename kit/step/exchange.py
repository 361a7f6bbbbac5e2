"""What a step sends: parameters gathered for use, gradients reduced, the loss summed, the norm clipped.

Explicit functional collectives around the user's forward and backward. One function each, so that
a strategy is only a choice of which axis a parameter is gathered and reduced over.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from kit._torch import collectives, foreach, tracing
from kit.step.mesh import Axes
from kit.step.placement import Slot
from kit.step.precision import Precision
from kit.step.provenance import SENDS, note, owner_of


def gathered(slot: Slot, local: torch.Tensor, axes: Axes, precision: Precision | None) -> torch.Tensor:
    """The parameter (this rank's part of a split one) in the format to compute in; cast before it is sent."""
    said = note("forward", owner_of(slot.name), carries=slot.name) | {SENDS: "parameter"}
    with tracing.node_note(said):
        if precision is not None and local.is_floating_point():
            local = local.to(getattr(torch, precision.compute))
        if not slot.sharded or axes.shard is None:
            return local
        whole = collectives.all_gather(local, axes.shard.group, axes.shard.size)
        whole = whole[: slot.rows] if whole.shape[0] != slot.rows else whole
        return whole.t() if slot.turned else whole


def reduced(slot: Slot, gradient: torch.Tensor, axes: Axes, precision: Precision | None) -> torch.Tensor:
    """The gradient summed over all ranks that have a part of it, in the parameter's format and shard."""
    said = note("backward", owner_of(slot.name), carries=slot.name) | {SENDS: "gradient"}
    with tracing.node_note(said):
        if precision is not None:
            gradient = gradient.to(getattr(torch, precision.reduce))
        if slot.sharded and axes.shard is not None:
            gradient = gradient.t() if slot.turned else gradient
            missing = axes.shard.size * slot.padded_rows - slot.rows
            if missing:
                gradient = nn.functional.pad(gradient, [0, 0] * (gradient.dim() - 1) + [0, missing])
            gradient = collectives.reduce_scatter_sum(gradient.contiguous(), axes.shard.group, axes.shard.size)
        elif axes.shard is not None:
            gradient = collectives.all_reduce_sum(gradient, axes.shard.group)
        if axes.replicate is not None:
            gradient = collectives.all_reduce_sum(gradient, axes.replicate.group)
        if slot.summed and axes.tensor is not None:
            gradient = collectives.all_reduce_sum(gradient, axes.tensor.group)
        return gradient.to(slot.local.dtype)


def summed(value: torch.Tensor, axes: Axes) -> torch.Tensor:
    """A small value summed over all data-parallel ranks."""
    for axis in axes.data:
        value = collectives.all_reduce_sum(value, axis.group)
    return value


def clipped(
    slots: Sequence[Slot], gradients: Sequence[torch.Tensor | None], axes: Axes, largest: float
) -> tuple[list[torch.Tensor | None], torch.Tensor]:
    """Gradients scaled so that their norm over all parameters is at most `largest`, and the norm before.

    As `torch.nn.utils.clip_grad_norm_`: the scale is largest / (norm + 1e-6), at most 1.
    """
    present = [(slot, g) for slot, g in zip(slots, gradients, strict=True) if g is not None]
    norm, scale = _norm_and_scale(present, axes, largest)
    scaled = iter(foreach.mul([g for _, g in present], scale))
    return [None if g is None else next(scaled) for g in gradients], norm


def clip_in_place(slots: Sequence[Slot], axes: Axes, largest: float) -> torch.Tensor:
    """The same with the gradients that the parameters of `slots` show; returns the norm before. A collective call."""
    shown = [(slot, slot.public.grad) for slot in slots if slot.public.grad is not None]
    with torch.no_grad():
        present = [(slot, g.to_local() if isinstance(g, DTensor) else g) for slot, g in shown]
        norm, scale = _norm_and_scale(present, axes, largest)
        for _, gradient in present:
            gradient.mul_(scale.to(gradient.dtype))
    return norm


def _norm_and_scale(
    present: Sequence[tuple[Slot, torch.Tensor]], axes: Axes, largest: float
) -> tuple[torch.Tensor, torch.Tensor]:
    if not present:
        raise ValueError("no parameter has a gradient to clip; expected a loss that depends on one")
    squares = [g.float().square().sum() if g.dtype != torch.float64 else g.square().sum() for _, g in present]
    norm = _over_parts([slot for slot, _ in present], squares, axes).sqrt()
    return norm, (largest / (norm + 1e-6)).clamp(max=1.0)


def _over_parts(slots: Sequence[Slot], squares: Sequence[torch.Tensor], axes: Axes) -> torch.Tensor:
    """The sum of each parameter's square over its parts: every part counts once, whatever it is kept whole over."""

    def of(*, sharded: bool, split: bool) -> torch.Tensor | None:
        mine = [
            square
            for slot, square in zip(slots, squares, strict=True)
            if (slot.sharded, slot.split is not None) == (sharded, split)
        ]
        return torch.stack(mine).sum() if mine else None

    shards = [of(sharded=True, split=False), of(sharded=True, split=True)]
    if axes.shard is not None and any(s is not None for s in shards):
        packed = torch.stack([s for s in shards if s is not None])
        sums = iter(collectives.all_reduce_sum(packed, axes.shard.group).unbind())
        shards = [None if s is None else next(sums) for s in shards]
    parts = _plus(of(sharded=False, split=True), shards[1])
    if parts is not None and axes.tensor is not None:
        parts = collectives.all_reduce_sum(parts, axes.tensor.group)
    total = _plus(_plus(of(sharded=False, split=False), shards[0]), parts)
    return total if total is not None else torch.zeros(())


def _plus(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other
