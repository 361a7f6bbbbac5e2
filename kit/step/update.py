"""The optimizer's update as arithmetic inside the graph.

SGD, Adam and AdamW, written after the algorithms in the documentation of `torch.optim` and done in
place on parameters and state, so a step needs no second copy. Scalars that change (learning rate,
step count) are tensors; those that do not are constants of the graph, and the step guards them.
Any other optimizer is traced by its own `step()` where that can be (`own_update.py`); where it cannot, that
`step()` runs after the graph (`eager_update.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from kit._torch import foreach
from kit._torch.optimizers import has_step_hooks
from kit.step.own_update import OptimizerError, OwnStep, UnmovedError, own_settings, own_state, own_step, own_update

SUPPORTED = (SGD, Adam, AdamW)
EAGER = "eager"  # the kind of a rule that leaves the update to the optimizer, outside the graph

# Hyper-parameters that the graph holds as constants; `lr` is an input and may change freely.
BAKED = ("betas", "eps", "weight_decay", "momentum", "nesterov", "maximize", "amsgrad", "dampening")


def baked(optimizer: Optimizer, group: dict[str, Any]) -> dict[str, Any]:
    """The settings of a parameter group that a graph holds as constants."""
    if type(optimizer) not in SUPPORTED:
        return own_settings(group)
    return {key: group[key] for key in BAKED if key in group}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How one parameter group is updated; the constants of `group["..."]` that the graph holds.

    `own`: the optimizer's own step, for kind "own". `why`: what keeps the update out of the graph, for kind "eager".
    """

    kind: str
    settings: dict[str, Any]
    decoupled_decay: bool
    own: OwnStep | None = None
    why: str = ""

    @property
    def by_rows(self) -> bool:
        """Whether each row of a parameter is updated by its own values alone, as shards need it."""
        return self.own is None or self.own.by_rows

    @property
    def by_elements(self) -> bool:
        """Whether each element is updated by its own values alone, as parts of split modules need it."""
        return self.own is None or self.own.by_elements

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the state tensors of a parameter, as `torch.optim` calls them; none where torch keeps them."""
        if self.kind == EAGER:
            return ()
        if self.own is not None:
            return self.own.names
        if self.kind == "sgd":
            return ("momentum_buffer",) if self.settings["momentum"] else ()
        return ("step", "exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if self.settings["amsgrad"] else ()))


def rules_of(optimizer: Optimizer, *, sharded: bool) -> tuple[Rule, ...]:
    """The rule of each parameter group; all of kind `EAGER` when one has no static update: `step()` is one call.

    Raises `OptimizerError` where the optimizer's own step would not do either: under shards (`sharded`) when it
    changes tensors that it was not given in its groups.
    """
    rules: list[Rule] = []
    try:
        for group in optimizer.param_groups:
            rules.append(rule_of(optimizer, group, rules))
    except UnmovedError:
        if sharded:
            raise
        return _eager(optimizer, "its step() alone changes no parameter of its groups")
    except OptimizerError as error:
        return _eager(optimizer, str(error))
    return tuple(rules)


def _eager(optimizer: Optimizer, why: str) -> tuple[Rule, ...]:
    rule = Rule(kind=EAGER, settings={}, decoupled_decay=False, why=why)
    return tuple(rule for _ in optimizer.param_groups)


def rule_of(optimizer: Optimizer, group: dict[str, Any], known: Sequence[Rule] = ()) -> Rule:
    """The update of a parameter group inside the graph; `known`: those of the groups before it.

    Raises `OptimizerError` for an optimizer whose own step does not trace, or for SGD's dampening (its
    first step differs from the others, so no one graph holds both).
    """
    if has_step_hooks(optimizer):
        raise OptimizerError(
            f"optimizer {type(optimizer).__name__} has step hooks, which a static step would not call; remove them"
        )
    if type(optimizer) not in SUPPORTED:
        own = own_step(optimizer, group, [rule.own for rule in known if rule.own is not None])
        return Rule(kind="own", settings=own.settings, decoupled_decay=False, own=own)
    settings = baked(optimizer, group)
    if settings.get("dampening") and settings.get("momentum"):
        raise OptimizerError(
            f"SGD with dampening {settings['dampening']} treats its first step differently; expected "
            "dampening 0, or scale the learning rate instead"
        )
    kind = "sgd" if isinstance(optimizer, SGD) else "adam"
    decoupled = isinstance(optimizer, AdamW) or bool(group.get("decoupled_weight_decay"))
    return Rule(kind=kind, settings=settings, decoupled_decay=decoupled)


def new_state(rule: Rule, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """State before the first step, as `torch.optim` starts with: zeros for SGD, Adam and AdamW."""
    if rule.own is not None:
        return own_state(rule.own, parameter)
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
    if rule.own is not None:
        own_update(rule.own, parameters=parameters, gradients=gradients, state=state, lr=lr)
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
