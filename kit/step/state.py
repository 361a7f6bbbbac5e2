"""Optimizer state of a placed model: whole beside whole parameters, sharded beside shards.

The tensors that the graph updates in place are the ones `optimizer.state` shows (as DTensors where
they are sharded), so the optimizer's own `state_dict` stays true without a copy. What
`optimizer.load_state_dict` brings is copied into them: the graph keeps its memory.
"""

import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from kit._torch.fake import is_fake
from kit.step.own_update import OptimizerError
from kit.step.placement import Slot, own_rows
from kit.step.shown import shown as as_seen
from kit.step.update import Rule, new_state

State = dict[str, torch.Tensor]


class StateError(ValueError):
    """Saved values that are not those of this step."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Held:
    """The padded local tensors behind what an optimizer shows for a slot."""

    slot: Slot
    rule: Rule
    state: State


# By id of the slot's local tensor, which `_Held.slot` keeps alive.
_held: "weakref.WeakKeyDictionary[Optimizer, dict[int, _Held]]" = weakref.WeakKeyDictionary()


def state_of(optimizer: Optimizer, rule: Rule, slot: Slot) -> State:
    """The local state tensors of a slot; as before the first step where the optimizer has none yet.

    State that the optimizer already has (a run that goes on) is taken over.
    """
    if not rule.state_names:
        return {}
    if optimizer not in _held:
        _held[optimizer] = {}
        optimizer.register_load_state_dict_post_hook(_take_over_loaded)
    known = _held[optimizer].get(id(slot.local))
    if known is None or set(known.state) != set(rule.state_names):
        known = _Held(slot=slot, rule=rule, state=new_state(rule, slot.local))
        _require_form(known.state, slot)
        _take_over(known, optimizer.state.get(slot.public, {}))
        _held[optimizer][id(slot.local)] = known
    if not is_fake(slot.local):  # of a plan nobody looks at the optimizer; showing its state was a twelfth of the cost
        show_state(optimizer, slot, known.state)
    return dict(known.state)


def show_state(optimizer: Optimizer, slot: Slot, state: State) -> None:
    """Let `optimizer.state` show a slot's state, as DTensors where it is sharded."""
    if not state:
        return
    optimizer.state[slot.public] = shown_state(slot, state)
    rule = _held[optimizer][id(slot.local)].rule
    _held[optimizer][id(slot.local)] = _Held(slot=slot, rule=rule, state=state)


def shown_state(slot: Slot, state: State) -> State:
    """A slot's state as the optimizer shows it; it shares memory with `state`."""
    return {name: _shown(tensor, slot) for name, tensor in state.items()}


def start_again(optimizer: Optimizer, slot: Slot) -> None:
    """Put a slot's state back to what it was before the first step, in place."""
    known = _held.get(optimizer, {}).get(id(slot.local))
    if known is not None:
        for name, value in new_state(known.rule, slot.local).items():
            known.state[name].copy_(value)


def local_part(value: torch.Tensor, slot: Slot) -> torch.Tensor:
    """What this rank keeps of a whole tensor of the parameter's shape, as the user sees it. Nothing is sent."""
    return as_seen(slot.form, own_rows(slot, value.detach().to(slot.local.device)))


def fit_own_state(optimizer: Optimizer, slot: Slot) -> None:
    """Make DTensors like the parameter of the state that an optimizer keeps on its own for it.

    Whole tensors, of before the parameter was placed, are cut; parts are bound to the parameter's mesh.
    """
    public: torch.Tensor = slot.public
    if not isinstance(public, DTensor):
        return
    state = optimizer.state.get(public, {})
    for name, value in state.items():
        if isinstance(value, DTensor):
            state[name] = DTensor.from_local(
                value.to_local(), public.device_mesh, value.placements, run_check=False, shape=value.shape,
                stride=value.stride(),
            )  # fmt: skip
        elif isinstance(value, torch.Tensor) and value.shape == slot.shape:
            state[name] = local_part(value, slot).clone()  # or a view would keep the whole


def _take_over_loaded(optimizer: Optimizer) -> None:
    """After `optimizer.load_state_dict`: the new values go into the memory that the graph updates."""
    for known in list(_held.get(optimizer, {}).values()):
        loaded = optimizer.state.get(known.slot.public, {})
        start_again(optimizer, known.slot)
        _take_over(known, loaded)
        show_state(optimizer, known.slot, known.state)


def _take_over(known: _Held, values: dict[str, Any]) -> None:
    slot = known.slot
    for name, value in values.items():
        if name not in known.state or value is None:
            continue
        local, whole = known.state[name], torch.as_tensor(value)
        expected = _whole_shape(local, slot)
        if whole.shape != expected:
            raise StateError(
                f"optimizer state {name} of {slot.name} is {list(whole.shape)}, expected {list(expected)}; load the "
                "state of an optimizer of the same model"
            )
        if local.dim() == 0 or not isinstance(slot.public, DTensor):
            local.copy_(whole)
            continue
        if isinstance(whole, DTensor):
            rows = whole.to_local()
            rows = rows.t() if slot.turned else rows
        else:
            rows = own_rows(slot, whole)
        local[: rows.shape[0]].copy_(rows)


def _shown(local: torch.Tensor, slot: Slot) -> torch.Tensor:
    if local.dim() == 0:
        return local
    form, shape = slot.form, _whole_shape(local, slot)
    if slot.sharded and shape != slot.shape:
        stride = torch.empty(shape, device="meta").stride()
        form = replace(form, shape=shape, part=shape, stride=stride)
    return as_seen(form, local)


def _whole_shape(local: torch.Tensor, slot: Slot) -> torch.Size:
    """Of a state tensor over all ranks; some optimizers keep one number a row."""
    if local.dim() == 0:
        return local.shape
    if slot.split is not None:
        return slot.shape
    return torch.Size([slot.shape[0], *local.shape[1:]]) if slot.sharded else local.shape


def _require_form(state: State, slot: Slot) -> None:
    """Raise `OptimizerError` for state of a split parameter that is not laid out as the parameter is."""
    strange = [name for name, value in state.items() if value.dim() > 0 and value.shape != slot.local.shape]
    if slot.split is None or not strange:
        return
    raise OptimizerError(
        f"the optimizer keeps {', '.join(strange)} in another shape than {slot.name}, which kit.TP splits over ranks; "
        "expected one that treats each element apart, such as AdamW, or a strategy without kit.TP"
    )
