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
from kit.step.update import BAKED


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
    optimizer: torch.optim.Optimizer

    def require(self, window: Sequence[Any]) -> None:
        """Raise `GuardError` that names the first difference."""
        if len(window) != self.micro_batches:
            one = " (one batch is one argument: step((x, y)))" if self.micro_batches == 1 else ""
            raise GuardError(
                f"got {len(window)} micro-batches, the step was compiled for {self.micro_batches}{one}; pass "
                f"{self.micro_batches}, or compile a step for {len(window)} with accumulation={len(window)}"
            )
        leaves = tuple(_leaf(leaf) for leaf in trees.leaves(list(window)))
        if leaves != self.leaves or trees.structure(list(window)) != self.form:
            raise GuardError(self._difference(leaves, window))
        if _modes(self.model) != self.modes:
            raise GuardError(
                "the model's train/eval mode changed since the step was compiled; call model.train() or model.eval() "
                "as it was, or compile again"
            )
        if _trainable(self.model) != self.trainable:
            changed = sorted(set(_trainable(self.model)) ^ set(self.trainable))
            more = ", ..." if len(changed) > 4 else ""
            raise GuardError(
                f"requires_grad of {', '.join(changed[:4])}{more} changed since the step was compiled; "
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
        for number, (seen, expected) in enumerate(zip(leaves, self.leaves, strict=False)):
            if seen != expected:
                advice = (
                    "pad or drop the batch to that shape, or compile a step for the new one"
                    if _is_tensor(seen) and _is_tensor(expected)
                    else "what is no tensor is a constant of the graph: pass it as a tensor, or compile again"
                )
                was = _leaf_text(expected)
                return f"batch leaf {number} is {_leaf_text(seen)}, the step was compiled for {was}; {advice}"
        return (
            f"the batch is nested as {trees.structure(list(window))}, the step was compiled for {self.form}; pass "
            "batches of the same form as the example"
        )


def guard_of(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Inputs) -> Guard:
    """The guard of a step as its inputs are now."""
    window = list(inputs.window)
    return Guard(
        form=trees.structure(window),
        micro_batches=len(window),
        leaves=tuple(_leaf(leaf) for leaf in trees.leaves(window)),
        modes=_modes(model),
        trainable=_trainable(model),
        settings=_settings(optimizer),
        model=model,
        optimizer=optimizer,
    )


def _leaf(leaf: Any) -> Leaf:
    return (tuple(leaf.shape), leaf.dtype, leaf.device) if isinstance(leaf, torch.Tensor) else leaf


def _is_tensor(leaf: Leaf) -> bool:
    return isinstance(leaf, tuple) and len(leaf) == 3 and isinstance(leaf[1], torch.dtype)


def _leaf_text(leaf: Leaf) -> str:
    if _is_tensor(leaf):
        return f"{str(leaf[1]).removeprefix('torch.')}{list(leaf[0])} on {leaf[2]}"
    return repr(leaf)


def _modes(model: nn.Module) -> tuple[bool, ...]:
    return tuple(module.training for module in model.modules())


def _trainable(model: nn.Module) -> tuple[str, ...]:
    return tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)


def _settings(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], ...]:
    return tuple({key: group[key] for key in BAKED if key in group} for group in optimizer.param_groups)
