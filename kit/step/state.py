"""Optimizer state of a placed model: whole beside whole parameters, sharded beside shards.

The tensors that the graph updates in place are the ones `optimizer.state` shows (as DTensors where
they are sharded), so the optimizer's own `state_dict` stays true without a copy.
"""

import weakref

import torch
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Optimizer

from kit.step.placement import Slot
from kit.step.update import Rule, new_state

State = dict[str, torch.Tensor]

# The padded local tensors behind the DTensors of an optimizer's state, by id of the slot's local tensor.
_locals: "weakref.WeakKeyDictionary[Optimizer, dict[int, State]]" = weakref.WeakKeyDictionary()


def state_of(optimizer: Optimizer, rule: Rule, slot: Slot) -> State:
    """The local state tensors of a slot; made as zeros where the optimizer has none yet.

    State that the optimizer already has (a run that goes on) is taken over.
    """
    if not rule.state_names:
        return {}
    held = _locals.setdefault(optimizer, {})
    state = held.get(id(slot.local))
    if state is None or set(state) != set(rule.state_names):
        state = new_state(rule, slot.local)
        for name, value in optimizer.state.get(slot.public, {}).items():
            if name in state and value is not None:
                _take_over(state[name], torch.as_tensor(value), slot)
        held[id(slot.local)] = state
    show_state(optimizer, slot, state)
    return dict(state)


def show_state(optimizer: Optimizer, slot: Slot, state: State) -> None:
    """Let `optimizer.state` show a slot's state, as DTensors where it is sharded."""
    if state:
        optimizer.state[slot.public] = {name: _shown(tensor, slot) for name, tensor in state.items()}


def _take_over(local: torch.Tensor, value: torch.Tensor, slot: Slot) -> None:
    if local.dim() == 0 or slot.shard is None:
        local.copy_(value)
        return
    if isinstance(value, DTensor):
        rows = value.to_local()
    else:
        begin = slot.shard.index * slot.padded_rows
        rows = value[begin : begin + slot.padded_rows]
    local[: rows.shape[0]] = rows


def _shown(local: torch.Tensor, slot: Slot) -> torch.Tensor:
    if local.dim() == 0 or slot.shard is None:
        return local
    public = slot.public
    if not isinstance(public, DTensor):
        raise TypeError(f"{slot.name}: a sharded slot shows a {type(public).__name__}, expected a DTensor")
    rows = public.to_local().shape[0]
    return DTensor.from_local(
        local[:rows], slot.shard.mesh, [Shard(0)], run_check=False, shape=slot.shape, stride=public.stride()
    )
