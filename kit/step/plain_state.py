"""The plain model's and the plain optimizer's `state_dict`, to and from a placed model.

Whole tensors under the names that an unplaced model has. `model.load_state_dict` and
`optimizer.load_state_dict` take them too: each rank keeps its part, in the memory that the graph updates.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from kit.step.placement import Slot, full_value, slots_of
from kit.step.state import StateError, local_part

_accepting: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()


def accept_plain_state(model: nn.Module) -> None:
    """From now on `model.load_state_dict` takes whole tensors for sharded parameters."""
    if model not in _accepting:
        _accepting.add(model)
        model.register_load_state_dict_pre_hook(_keep_local_parts)  # type: ignore[no-untyped-call]


def full_model_state(model: nn.Module, slots: Sequence[Slot]) -> dict[str, torch.Tensor]:
    """`model.state_dict()` with whole tensors, copies; buffers are this rank's. A collective call."""
    placed = {id(slot.public): slot for slot in slots}
    whole: dict[int, torch.Tensor] = {}
    for value in (values := model.state_dict(keep_vars=True)).values():
        if id(value) not in whole and isinstance(value, torch.Tensor):
            slot = placed.get(id(value))
            whole[id(value)] = value.detach().clone() if slot is None else full_value(slot)
    return {name: whole[id(value)] for name, value in values.items() if isinstance(value, torch.Tensor)}


def full_optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """`optimizer.state_dict()` with whole tensors, copies. A collective call."""
    packed = optimizer.state_dict()
    state = {number: {key: _whole(value) for key, value in one.items()} for number, one in packed["state"].items()}
    return {**packed, "state": state}


def _whole(value: Any) -> Any:
    if isinstance(value, DTensor):
        return value.full_tensor()
    return value.clone() if isinstance(value, torch.Tensor) else value


def _keep_local_parts(module: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *_: Any) -> None:
    """A hook of `load_state_dict`, before anything is copied; `state` is torch's own copy of the dict."""
    if metadata.get("assign_to_params_buffers"):
        raise StateError(
            "load_state_dict(assign=True) would put other tensors in the place of those that the step's graph updates; "
            "load with assign=False, or build the step after loading"
        )
    placed = {id(slot.public): slot for slot in slots_of(module)}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        value = state.get(prefix + name)
        slot = placed.get(id(parameter))
        if slot is None or not isinstance(parameter, DTensor) or not isinstance(value, torch.Tensor):
            continue
        if not isinstance(value, DTensor) and value.shape == parameter.shape:  # else torch names both shapes
            state[prefix + name] = local_part(value, slot)
