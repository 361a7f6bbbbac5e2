"""Packed parameters (`kit.TP(packed=...)`) in a saved step: whole.

A rank keeps several blocks of one; torch.distributed.checkpoint takes a rank's part for a single block and would mix
them up. So they are gathered to be saved, and each rank reads the whole and keeps its blocks.
"""

from collections.abc import Sequence

import torch
from torch.distributed.tensor import DTensor

from kit.step.placement import Slot, own_rows


def packed_of(slots: Sequence[Slot]) -> dict[int, Slot]:
    """The packed slots, by the identity of the parameter that the module shows."""
    return {id(slot.public): slot for slot in slots if is_packed(slot)}


def is_packed(slot: Slot) -> bool:
    """Whether this rank keeps several blocks of the parameter."""
    return slot.split is not None and slot.split.packs > 1


def gathered(value: torch.Tensor) -> torch.Tensor:
    """A packed parameter, or state of one, as a whole tensor. A collective call where it is split."""
    return value.full_tensor().detach() if isinstance(value, DTensor) else value.detach()


def room_for(value: torch.Tensor, slot: Slot) -> torch.Tensor:
    """Where to read what `gathered` gave."""
    return torch.empty(value.shape, dtype=value.dtype, device=slot.local.device)


def keep_own(slot: Slot, local: torch.Tensor, whole: torch.Tensor) -> None:
    """Copy this rank's blocks of a whole tensor into what it keeps, a parameter or state of one."""
    rows = own_rows(slot, whole) if local.dim() else whole
    (local[: rows.shape[0]] if local.dim() else local).copy_(rows)
