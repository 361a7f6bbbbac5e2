"""What a step sends: parameters gathered for use, gradients reduced, the loss summed, the norm clipped.

Explicit functional collectives around the user's forward and backward. One function each, so that
a strategy is only a choice of which axis a parameter is gathered and reduced over.
"""

from collections.abc import Sequence

import torch
from torch import nn

from kit._torch import collectives, foreach, tracing
from kit.step.mesh import Axes
from kit.step.placement import Slot
from kit.step.precision import Precision
from kit.step.provenance import note, owner_of


def gathered(slot: Slot, local: torch.Tensor, axes: Axes, precision: Precision | None) -> torch.Tensor:
    """The whole parameter in the format to compute in; cast before it is sent."""
    with tracing.node_note(note("forward", owner_of(slot.name))):
        if precision is not None and local.is_floating_point():
            local = local.to(getattr(torch, precision.compute))
        if not slot.sharded or axes.shard is None:
            return local
        whole = collectives.all_gather(local, axes.shard.group, axes.shard.size)
        return whole[: slot.shape[0]] if whole.shape[0] != slot.shape[0] else whole


def reduced(slot: Slot, gradient: torch.Tensor, axes: Axes, precision: Precision | None) -> torch.Tensor:
    """The gradient summed over all data-parallel ranks, in the parameter's format and shard."""
    with tracing.node_note(note("backward", owner_of(slot.name))):
        if precision is not None:
            gradient = gradient.to(getattr(torch, precision.reduce))
        if slot.sharded and axes.shard is not None:
            missing = axes.shard.size * slot.padded_rows - slot.shape[0]
            if missing:
                gradient = nn.functional.pad(gradient, [0, 0] * (gradient.dim() - 1) + [0, missing])
            gradient = collectives.reduce_scatter_sum(gradient.contiguous(), axes.shard.group, axes.shard.size)
        elif axes.shard is not None:
            gradient = collectives.all_reduce_sum(gradient, axes.shard.group)
        if axes.replicate is not None:
            gradient = collectives.all_reduce_sum(gradient, axes.replicate.group)
        return gradient.to(slot.local.dtype)


def summed(value: torch.Tensor, axes: Axes) -> torch.Tensor:
    """A small value summed over all data-parallel ranks."""
    for axis in axes:
        value = collectives.all_reduce_sum(value, axis.group)
    return value


def clipped(
    slots: Sequence[Slot], gradients: Sequence[torch.Tensor | None], axes: Axes, largest: float
) -> tuple[list[torch.Tensor | None], torch.Tensor]:
    """Gradients scaled so that their norm over all parameters is at most `largest`, and the norm before.

    As `torch.nn.utils.clip_grad_norm_`: the scale is largest / (norm + 1e-6), at most 1.
    """
    rows = [row for row, gradient in enumerate(gradients) if gradient is not None]
    present = [g for g in gradients if g is not None]
    squares = [g.float().square().sum() if g.dtype != torch.float64 else g.square().sum() for g in present]
    shards = [s for s, row in zip(squares, rows, strict=True) if slots[row].sharded]
    wholes = [s for s, row in zip(squares, rows, strict=True) if not slots[row].sharded]
    total = torch.stack(wholes).sum() if wholes else None
    if shards:
        mine = torch.stack(shards).sum()
        mine = mine if axes.shard is None else collectives.all_reduce_sum(mine, axes.shard.group)
        total = mine if total is None else total + mine
    if total is None:
        raise ValueError("no parameter has a gradient to clip; expected a loss that depends on one")
    norm = total.sqrt()
    scale = (largest / (norm + 1e-6)).clamp(max=1.0)
    scaled = iter(foreach.mul(present, scale))
    return [None if g is None else next(scaled) for g in gradients], norm
