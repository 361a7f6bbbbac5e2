"""The optimizer's update as arithmetic inside the graph.

SGD, Adam and AdamW, written after the algorithms in the documentation of `torch.optim` and done in
place on parameters and state, so a step needs no second copy. Scalars that change (learning rate,
step count) are tensors; those that do not are constants of the graph, and the step guards them.
torch's own `step()` is not traced: on CPU it reads the step count as a Python number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from kit._torch import foreach

SUPPORTED = (SGD, Adam, AdamW)

# Hyper-parameters that the graph holds as constants; `lr` is an input and may change freely.
BAKED = ("betas", "eps", "weight_decay", "momentum", "nesterov", "maximize", "amsgrad", "dampening")


class OptimizerError(ValueError):
    """An optimizer, or a setting of one, that has no static update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How one parameter group is updated; the constants of `group["..."]` that the graph holds."""

    kind: str
    settings: dict[str, Any]
    decoupled_decay: bool

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the state tensors of a parameter, as `torch.optim` calls them."""
        if self.kind == "sgd":
            return ("momentum_buffer",) if self.settings["momentum"] else ()
        return ("step", "exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if self.settings["amsgrad"] else ()))


def rule_of(optimizer: Optimizer, group: dict[str, Any]) -> Rule:
    """The update rule of a parameter group.

    Raises `OptimizerError` for another optimizer, or for SGD's dampening (its first step differs
    from the others, so no one graph holds both).
    """
    if type(optimizer) not in SUPPORTED:
        raise OptimizerError(
            f"optimizer {type(optimizer).__name__} has no static update; expected one of "
            f"{', '.join(cls.__name__ for cls in SUPPORTED)} (the class itself, not a subclass)"
        )
    settings = {key: group[key] for key in BAKED if key in group}
    if settings.get("dampening") and settings.get("momentum"):
        raise OptimizerError(
            f"SGD with dampening {settings['dampening']} treats its first step differently; expected "
            "dampening 0, or scale the learning rate instead"
        )
    kind = "sgd" if isinstance(optimizer, SGD) else "adam"
    decoupled = isinstance(optimizer, AdamW) or bool(group.get("decoupled_weight_decay"))
    return Rule(kind=kind, settings=settings, decoupled_decay=decoupled)


def new_state(rule: Rule, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """State before the first step: zeros, as `torch.optim` starts with."""
    return {
        name: torch.zeros((), dtype=torch.float32, device=parameter.device)
        if name == "step"
        else torch.zeros_like(parameter, memory_format=torch.preserve_format)
        for name in rule.state_names
    }


def update(
    rule: Rule,
    *,
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    state: Sequence[dict[str, torch.Tensor]],
    lr: torch.Tensor,
) -> None:
    """Change `parameters` and `state` in place by one step; `lr` is a 0-dim float64 tensor."""
    if not parameters:
        return
    grads = list(gradients)
    if rule.settings.get("maximize"):
        grads = list(foreach.neg(grads))
    decay = rule.settings["weight_decay"]
    if decay and rule.decoupled_decay:
        foreach.mul_(list(parameters), 1 - lr * decay)
    elif decay:
        grads = list(foreach.add(grads, list(parameters), alpha=decay))
    if rule.kind == "sgd":
        _sgd(rule, list(parameters), grads, state, lr)
    else:
        _adam(rule, list(parameters), grads, state, lr)


def _sgd(
    rule: Rule,
    parameters: list[torch.Tensor],
    gradients: list[torch.Tensor],
    state: Sequence[dict[str, torch.Tensor]],
    lr: torch.Tensor,
) -> None:
    momentum = rule.settings["momentum"]
    if momentum:
        buffers = [s["momentum_buffer"] for s in state]
        foreach.mul_(buffers, momentum)
        foreach.add_(buffers, gradients)
        nesterov = rule.settings["nesterov"]
        gradients = list(foreach.add(gradients, buffers, alpha=momentum)) if nesterov else buffers
    foreach.sub_(parameters, foreach.mul(gradients, lr))


def _adam(
    rule: Rule,
    parameters: list[torch.Tensor],
    gradients: list[torch.Tensor],
    state: Sequence[dict[str, torch.Tensor]],
    lr: torch.Tensor,
) -> None:
    beta1, beta2 = rule.settings["betas"]
    averages, squares, steps = ([s[key] for s in state] for key in ("exp_avg", "exp_avg_sq", "step"))
    foreach.add_(steps, 1)
    # Bias corrections in float64: 1 - 0.999 in float32 is already wrong by 5e-5 relative.
    count = steps[0].to(torch.float64)
    correction1, correction2 = 1 - beta1**count, 1 - beta2**count
    foreach.lerp_(averages, gradients, 1 - beta1)
    foreach.mul_(squares, beta2)
    foreach.addcmul_(squares, gradients, gradients, 1 - beta2)
    if rule.settings["amsgrad"]:
        largest = [s["max_exp_avg_sq"] for s in state]
        foreach.maximum_(largest, squares)
        squares = largest
    divisor = foreach.sqrt(squares)
    foreach.mul_(divisor, correction2.rsqrt())
    foreach.add_(divisor, rule.settings["eps"])
    change = foreach.div(averages, divisor)
    foreach.mul_(change, lr / correction1)
    foreach.sub_(parameters, change)
