"""Take the optimizer's step outside the graph, for an optimizer whose own `step()` does not trace either.

Forward, loss, backward, reduction and clipping stay one static graph, which returns the gradients; they
are put where the optimizer looks for them and its own `step()` runs as in plain torch.
"""

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from kit.step.inputs import Inputs
from kit.step.own_update import OptimizerError
from kit.step.placement import Slot
from kit.step.shown import shown
from kit.step.state import fit_own_state

_SHARDED_WORDS = ("DTensor", "Sharding propagation", "placement")  # of torch's errors on shards, seen on 2.13


class EagerUpdate:
    """Gradients of a graph into `.grad` of the parameters `names`, then the optimizer's own step."""

    def __init__(self, optimizer: Optimizer, names: Sequence[str]) -> None:
        self._optimizer = optimizer
        self._names = tuple(names)

    @property
    def gradients(self) -> int:
        """How many gradients the graph returns last."""
        return len(self._names)

    def __call__(self, slots: Sequence[Slot], gradients: Sequence[torch.Tensor]) -> None:
        """One update; the gradients are dropped after it."""
        by_name = {slot.name: slot for slot in slots}
        self._optimizer.zero_grad()
        for slot in slots:
            fit_own_state(self._optimizer, slot)  # `load_state_dict` may have brought whole tensors
        mine = [by_name[name] for name in self._names]
        for slot, gradient in zip(mine, gradients, strict=True):
            slot.public.grad = as_shown(slot, gradient)
        try:
            self._optimizer.step()
        except (RuntimeError, NotImplementedError) as error:
            if any(word in str(error) for word in _SHARDED_WORDS) and any(slot.sharded for slot in slots):
                raise OptimizerError(
                    f"the own step of optimizer {type(self._optimizer).__name__} does not take sharded parameters "
                    f'(DTensors): {error}. Use strategy="ddp" or another optimizer'
                ) from error
            raise
        self._optimizer.zero_grad()
        for slot in mine:
            self._require_in_place(slot)

    def _require_in_place(self, slot: Slot) -> None:
        public: torch.Tensor = slot.public
        mine = public.to_local() if isinstance(public, DTensor) else public
        if mine.numel() and mine.data_ptr() != slot.local.data_ptr():
            raise OptimizerError(
                f"optimizer {type(self._optimizer).__name__} gave {slot.name} other memory in its step, and the graph "
                "would go on with the old; expected a step that changes parameters in place (mul_, add_, copy_)"
            )

    def rebind(self, slots: Sequence[Slot]) -> None:
        """Bind sharded state to the meshes of `slots`, after the parameters were bound to them."""
        for slot in slots:
            fit_own_state(self._optimizer, slot)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Put the optimizer's own state back as it was when the block ends."""
        before = copy.deepcopy(self._optimizer.state_dict())
        try:
            yield
        finally:
            self._optimizer.load_state_dict(before)


def eager_update_of(optimizer: Optimizer, inputs: Inputs, unused: Sequence[str]) -> EagerUpdate | None:
    """The update of an optimizer that has no static one; None for one that has."""
    if not inputs.eager_reason:
        return None
    for slot in inputs.slots:
        fit_own_state(optimizer, slot)
    trained = {row for group in inputs.groups for row in group.slot_rows}
    names = [slot.name for row, slot in enumerate(inputs.slots) if row in trained and slot.name not in unused]
    return EagerUpdate(optimizer, names)


def as_shown(slot: Slot, gradient: torch.Tensor) -> torch.Tensor:
    """A gradient in the form in which the module shows the parameter: whole, or a DTensor without the padding."""
    return shown(slot.form, gradient)


def require_step_without_closure(optimizer: Optimizer) -> None:
    """Raise `OptimizerError` for an optimizer whose step calls the loss itself."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise OptimizerError(
            f"optimizer {type(optimizer).__name__} calls the loss itself several times a step, which a static step "
            "cannot do; expected one whose step() takes no closure, or use kit.compile(model) and write the closure "
            "around it"
        )
