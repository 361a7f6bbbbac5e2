"""State of an optimizer that takes its own step after the graph, to and from a saved step.

The graph does not hold it, so it is saved in the form in which the optimizer keeps it: tensors laid out like
their parameter (shards as DTensors), tensors that all ranks have alike, and plain values.
"""

from typing import Any

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from kit.step.folder import SavedStepError
from kit.step.placement import Slot

_SAVED = (torch.Tensor, bool, int, float, str, type(None))


def eager_entries(optimizer: Optimizer, slot: Slot) -> dict[str, Any]:
    """What the optimizer keeps for a slot, by key. Raises `SavedStepError` for what could not be loaded again."""
    state: dict[str, Any] = optimizer.state.get(slot.public, {})
    kind = type(optimizer).__name__
    for key, value in state.items():
        if not isinstance(key, str) or not isinstance(value, _SAVED):
            raise SavedStepError(
                f"optimizer {kind} keeps {key!r} of {slot.name} as {type(value).__name__}; expected tensors, numbers "
                "and text under text keys. Use torch.save on full_state_dict() and full_optimizer_state_dict()"
            )
        if slot.sharded and isinstance(value, torch.Tensor) and value.dim() and not isinstance(value, DTensor):
            raise SavedStepError(
                f"optimizer {kind} keeps {key} of {slot.name} as a tensor {list(value.shape)} that is not sharded as "
                'the parameter is, so ranks may differ in it; expected DTensors, or use strategy="ddp"'
            )
    return dict(state)


def eager_targets(slot: Slot, saved: dict[str, Any]) -> dict[str, Any]:
    """Room for what was saved for a slot, by key: fresh tensors, None for a plain value."""
    start = f"optimizer.state.{slot.name}."
    keys = [key.removeprefix(start) for key in saved if key.startswith(start)]
    return {key: _room(slot, saved[start + key]) for key in keys if "." not in key}  # a dot: of another slot


def _room(slot: Slot, entry: Any) -> torch.Tensor | None:
    if not isinstance(entry, TensorStorageMetadata):
        return None
    if entry.size == slot.shape:
        return torch.zeros_like(slot.public.detach(), dtype=entry.properties.dtype)
    # torch's optimizers keep their count of steps on the CPU, whatever the device, unless they are told otherwise.
    device = torch.device("cpu") if not entry.size else slot.local.device
    return torch.zeros(entry.size, dtype=entry.properties.dtype, device=device)


def take_eager(optimizer: Optimizer, slot: Slot, values: dict[str, Any]) -> None:
    """Put what was read in the place of what the optimizer keeps; nothing was saved before a first step."""
    if values:
        optimizer.state[slot.public] = values
    else:
        optimizer.state.pop(slot.public, None)
