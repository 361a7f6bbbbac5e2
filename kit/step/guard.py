"""What a step's graph takes for granted, checked at each call.

The graph holds shapes, dtypes, constants of the batch, hyper-parameters and the train/eval mode as
they were when it was traced. A call outside them is refused with the difference named: the graph
would compute something else without a word.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kit._torch import trees
from kit.step.inputs import Inputs
from kit.step.update import baked


class GuardError(ValueError):
    """A call that the graph was not traced for."""


Leaf = tuple[tuple[int, ...], torch.dtype, torch.device] | Any


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Guard:
    """The facts a graph was traced under, and the objects to compare them with."""

    form: str
    micro_batches: int
    leaves: tuple[Leaf, ...]
    modes: tuple[bool, ...]
    trainable: tuple[str, ...]
    settings: tuple[dict[str, Any], ...]
    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    what: str = "step"

    def require(self, window: Sequence[Any]) -> None:
        """Raise `GuardError` that names the first difference."""
        if len(window) != self.micro_batches:
            one = " (one batch is one argument: step((x, y)))" if self.micro_batches == 1 else ""
            raise GuardError(
                f"got {len(window)} micro-batches, the step was compiled for {self.micro_batches}{one}; pass "
                f"{self.micro_batches}, or compile a step for {len(window)} with accumulation={len(window)}"
            )
        if not self.fits(window):
            raise GuardError(self._difference(_leaves(window), window))
        self.require_rest()

    def fits(self, window: Sequence[Any]) -> bool:
        """Whether a window of micro-batches has the form, shapes and constants of the one traced."""
        return _leaves(window) == self.leaves and trees.structure(list(window)) == self.form

    def words_of(self, window: Sequence[Any]) -> str:
        """What a graph holds of a call, in words that are the same on all ranks of one program."""
        batch = ", ".join(map(_leaf_word, _leaves(window)))
        rest = (_modes(self.model), _trainable(self.model), _settings(self.optimizer))
        same = "" if rest == (self.modes, self.trainable, self.settings) else " (the model or optimizer changed)"
        return f"{len(window)} micro-batches of {batch} nested as {trees.structure(list(window))}{same}"

    def require_rest(self) -> None:
        """Raise `GuardError` when the model's or the optimizer's settings changed."""
        if _modes(self.model) != self.modes:
            raise GuardError(
                f"the model's train/eval mode changed since the {self.what} was compiled; call model.train() or "
                "model.eval() as it was, or compile again"
            )
        if _trainable(self.model) != self.trainable:
            changed = sorted(set(_trainable(self.model)) ^ set(self.trainable))
            more = ", ..." if len(changed) > 4 else ""
            raise GuardError(
                f"requires_grad of {', '.join(changed[:4])}{more} changed since the {self.what} was compiled; "
                "set it as it was, or compile again"
            )
        if self.settings != _settings(self.optimizer):
            old, new = next((o, n) for o, n in zip(self.settings, _settings(self.optimizer), strict=False) if o != n)
            names = [key for key in old if old[key] != new.get(key)]
            raise GuardError(
                f"the optimizer's {', '.join(f'{k} went from {old[k]} to {new.get(k)}' for k in names)}; only lr may "
                "change without compiling again"
            )

    def _difference(self, leaves: tuple[Leaf, ...], window: Sequence[Any]) -> str:
        another = "compile a step for the new one" if self.what == "step" else "compile with variants=2 to keep both"
        for number, (seen, expected) in enumerate(zip(leaves, self.leaves, strict=False)):
            if seen != expected:
                advice = (
                    f"pad or drop the batch to that shape, or {another}"
                    if _is_tensor(seen) and _is_tensor(expected)
                    else "what is no tensor is a constant of the graph: pass it as a tensor, or compile again"
                )
                was = _leaf_text(expected)
                return f"batch leaf {number} is {_leaf_text(seen)}, the {self.what} was compiled for {was}; {advice}"
        return (
            f"the batch is nested as {trees.structure(list(window))}, the {self.what} was compiled for {self.form}; "
            "pass batches of the same form as the example"
        )


def guard_of(model: nn.Module, optimizer: torch.optim.Optimizer | None, inputs: Inputs, *, what: str = "step") -> Guard:
    """The guard of a step as its inputs are now."""
    window = list(inputs.window)
    return Guard(
        form=trees.structure(window),
        micro_batches=len(window),
        leaves=_leaves(window),
        modes=_modes(model),
        trainable=_trainable(model),
        settings=_settings(optimizer),
        model=model,
        optimizer=optimizer,
        what=what,
    )


def _leaves(window: Sequence[Any]) -> tuple[Leaf, ...]:
    return tuple(_leaf(leaf) for leaf in trees.leaves(list(window)))


def _leaf(leaf: Any) -> Leaf:
    return (tuple(leaf.shape), leaf.dtype, leaf.device) if isinstance(leaf, torch.Tensor) else leaf


def _is_tensor(leaf: Leaf) -> bool:
    return isinstance(leaf, tuple) and len(leaf) == 3 and isinstance(leaf[1], torch.dtype)


def _leaf_text(leaf: Leaf) -> str:
    if _is_tensor(leaf):
        return f"{str(leaf[1]).removeprefix('torch.')}{list(leaf[0])} on {leaf[2]}"
    return repr(leaf)


def _leaf_word(leaf: Leaf) -> str:
    """A leaf without what differs between ranks: the number of its device, the address of an object."""
    if _is_tensor(leaf):
        return f"{str(leaf[1]).removeprefix('torch.')}{list(leaf[0])}"
    return repr(leaf) if isinstance(leaf, int | float | complex | str | bytes | None) else type(leaf).__name__


def _modes(model: nn.Module) -> tuple[bool, ...]:
    return tuple(module.training for module in model.modules())


def _trainable(model: nn.Module) -> tuple[str, ...]:
    return tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)


def _settings(optimizer: torch.optim.Optimizer | None) -> tuple[dict[str, Any], ...]:
    return () if optimizer is None else tuple(baked(optimizer, group) for group in optimizer.param_groups)
