"""Any optimizer whose own `step()` traces: it is run on the graph's values, its state an input of the graph.

torch's optimizers are taken in the form that torch.compile needs (`capturable`, step count a tensor), with
numbers of the state as float64 tensors. Before one is believed, its graph trains small stand-ins for eight steps
and must give what the optimizer itself gives; and it must treat rows apart, or parameters cannot be sharded.
"""

import traceback
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.optim import Optimizer

from kit._torch import tracing
from kit._torch.fake import running_real
from kit._torch.optimizers import traceable_step
from kit.step.provenance import is_user_file
from kit.step.tensor_numbers import TensorNumbers

State = dict[str, torch.Tensor]

_STEPS = 8  # RAdam changes its rule at the sixth step
_PROOF_LR = 0.01  # the user's may start at 0
_CLOSE = 1e-4  # of the largest change: ASGD keeps a rate in float32, Muon computes in bfloat16
# Settings that a schedule or torch may change without changing the graph, or that choose among equal implementations.
_FREE = ("params", "lr", "initial_lr", "max_lr", "min_lr", "foreach", "fused", "capturable", "param_names")


class OptimizerError(ValueError):
    """An optimizer, or a setting of one, that has no static update."""


class UnmovedError(OptimizerError):
    """An optimizer whose step leaves the parameters of its groups as they are: it has them from elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnStep:
    """An optimizer's `step()` as the update of one parameter group.

    `bare`: an optimizer with the user's attributes and no parameters. `lr`: the rate that new state is made
    with. `names`: of the state of a parameter; `scalars` are those that are one number. `by_rows`: whether each
    row is updated by its own values alone, `by_elements`: each element. `dims`:
    numbers of dims of the parameters that it was proved on.
    """

    bare: Optimizer
    settings: dict[str, Any]
    lr: float
    names: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    by_rows: bool = True
    by_elements: bool = True
    dims: frozenset[int] = frozenset()


def own_settings(group: dict[str, Any]) -> dict[str, Any]:
    """What a graph holds as constants of a parameter group."""
    settings = {key: value for key, value in group.items() if key not in _FREE}
    return {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in settings.items()}


def own_step(optimizer: Optimizer, group: dict[str, Any], known: Sequence[OwnStep] = ()) -> OwnStep:
    """The update of a parameter group by the optimizer's own `step()`; `known`: those of its other groups.

    Raises `OptimizerError` when it reads values, or gives something else than it does itself.
    """
    name = type(optimizer).__name__
    if "lr" not in group:
        raise OptimizerError(f"optimizer {name} has no static update: its groups have no lr; expected a setting lr")
    bare = _bare(optimizer)
    settings = {key: value for key, value in group.items() if key not in ("params", "lr")}
    shapes = {p.dim(): (4, *(min(int(size), 3) for size in p.shape[1:])) for p in group["params"] if p.dim()}
    own = OwnStep(bare=bare, settings=settings, lr=_PROOF_LR, dims=frozenset(shapes))
    for other in known:
        if other.dims == own.dims and own_settings(other.settings) == own_settings(settings):
            return replace(other, lr=float(group["lr"]))
    with running_real(), torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            return replace(_proved(own, name, list(shapes.values()) or [(4,)]), lr=float(group["lr"]))
        except tracing.DATA_DEPENDENT as error:
            raise OptimizerError(f"optimizer {name} has no static update: {_reading(error)}") from error
        except (TypeError, ValueError, KeyError, AttributeError, RuntimeError, AssertionError) as error:
            if isinstance(error, OptimizerError):
                raise
            raise OptimizerError(
                f"optimizer {name} has no static update: its step() raised {type(error).__name__}: {error}"
            ) from error


def own_state(own: OwnStep, parameter: torch.Tensor) -> State:
    """State before the first step, from a step of zero gradients on a copy."""
    copied = parameter.detach().clone()
    optimizer = _with(own, [copied])
    states = _Recorded()
    for key, value in optimizer.state.items():  # made with the optimizer
        states[key] = value
    optimizer.state = states
    _step(optimizer, own, [copied], [torch.zeros_like(copied)], own.lr)
    first = states[copied].first
    strange = {key: value for key, value in first.items() if not isinstance(value, torch.Tensor | int | float)}
    if strange:
        kinds = ", ".join(f"{key} is {type(value).__name__}" for key, value in strange.items())
        raise OptimizerError(
            f"optimizer {type(own.bare).__name__} keeps state that is no tensor: {kinds}; expected tensors and numbers"
        )
    return {
        key: torch.as_tensor(value, device=parameter.device).to(torch.float64)
        if key in own.scalars or not isinstance(value, torch.Tensor)
        else value
        for key, value in first.items()
    }


def own_update(
    own: OwnStep,
    *,
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    state: Sequence[State],
    lr: torch.Tensor,
) -> None:
    """Change `parameters` and `state` in place by one step."""
    optimizer = _with(own, list(parameters), made_anew=False)
    optimizer.state = defaultdict(dict, {p: dict(s) for p, s in zip(parameters, state, strict=True)})
    _step(optimizer, own, parameters, gradients, lr)
    for parameter, held in zip(parameters, state, strict=True):
        after = optimizer.state[parameter]
        if set(after) != set(held):
            raise OptimizerError(
                f"optimizer {type(own.bare).__name__} has no static update: its state is {sorted(held)} and becomes "
                f"{sorted(after)} in a later step"
            )
        for key, value in after.items():
            if value is not held[key]:
                held[key].copy_(torch.as_tensor(value))


class _RecordedState(dict[str, Any]):
    """State of one parameter that remembers the first value of each key."""

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.first: dict[str, Any] = {}
        self.update(values or {})

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in self.first and value is not None:
            self.first[key] = value.detach().clone() if isinstance(value, torch.Tensor) else value
        super().__setitem__(key, value)

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value


class _Recorded(defaultdict[torch.Tensor, Any]):
    """State of all parameters, each recorded."""

    def __init__(self) -> None:
        super().__init__(_RecordedState)

    def __setitem__(self, key: torch.Tensor, value: Any) -> None:
        super().__setitem__(key, value if isinstance(value, _RecordedState) else _RecordedState(value))


def _bare(optimizer: Optimizer) -> Optimizer:
    """The optimizer's attributes without its parameters; `copy` would drop attributes that torch does not know."""
    bare: Optimizer = object.__new__(type(optimizer))
    bare.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})  # a scheduler's
    bare.param_groups, bare.state = [], defaultdict(dict)
    return bare


def _with(own: OwnStep, parameters: list[torch.Tensor], *, made_anew: bool = True) -> Optimizer:
    """The optimizer over other parameters; `made_anew` calls its constructor, where some make their state."""
    optimizer = _bare(own.bare)
    if made_anew:
        try:
            made = type(own.bare)(parameters, **{k: own.settings.get(k, v) for k, v in own.bare.defaults.items()})
            optimizer.state = made.state
        except TypeError:  # a constructor of other arguments: its state is made in its step, or the proof fails
            pass
    optimizer.param_groups = [{**own.settings, "params": parameters, "lr": own.lr}]
    return optimizer


def _step(
    optimizer: Optimizer,
    own: OwnStep,
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    lr: torch.Tensor | float,
) -> None:
    chosen = {"foreach": False, "fused": False, "capturable": True}
    group = optimizer.param_groups[0]
    group.update({key: value for key, value in chosen.items() if key in own.settings}, lr=lr)
    with traceable_step(type(optimizer)), TensorNumbers(parameters, gradients):
        type(optimizer).step(optimizer)


def _proved(own: OwnStep, name: str, shapes: list[tuple[int, ...]]) -> OwnStep:
    """`own` with what was found out on stand-ins of `shapes`, in float64."""
    source = torch.Generator().manual_seed(0)
    begin = [torch.randn(shape, dtype=torch.float64, generator=source) for shape in shapes]
    pushes = [[torch.randn(s, dtype=torch.float64, generator=source) for s in shapes] for _ in range(_STEPS)]
    found = own_state(own, begin[0])
    own = replace(own, names=tuple(found), scalars=tuple(key for key, value in found.items() if value.dim() == 0))
    expected = _trained_by_itself(own, begin, pushes)
    if all(map(torch.equal, expected, begin)):
        raise UnmovedError(f"optimizer {name} has no static update: its step() alone changes no parameter")
    got = _trained_by_graph(own, begin, pushes)
    if not _worst(got, expected, begin) < _CLOSE:
        raise OptimizerError(
            f"optimizer {name} has no static update: as a graph it gives other values than by itself (its first step "
            "differs from the later ones, or it counts in a Python variable)"
        )
    by_rows, by_last = (_worst(_trained_in_two(own, begin, pushes, dim), got, begin) < _CLOSE for dim in (0, -1))
    return replace(own, by_rows=by_rows, by_elements=by_rows and by_last)


def _worst(values: list[torch.Tensor], expected: list[torch.Tensor], begin: list[torch.Tensor]) -> float:
    """The largest difference, as a share of the largest change that was expected."""
    change = max((e - b).abs().max().item() for e, b in zip(expected, begin, strict=True))
    return max((v - e).abs().max().item() for v, e in zip(values, expected, strict=True)) / change


def _trained_in_two(
    own: OwnStep, begin: list[torch.Tensor], pushes: list[list[torch.Tensor]], dim: int
) -> list[torch.Tensor]:
    """Each parameter cut in two along a dim, trained apart and joined; what is one wide there stays whole."""
    parts = []
    for half in (0, 1):
        cut = [[t.tensor_split([1], dim)[half] if t.shape[dim] > 1 else t for t in ts] for ts in (begin, *pushes)]
        parts.append(_trained_by_graph(own, cut[0], cut[1:]))
    joined = zip(*parts, begin, strict=True)
    return [torch.cat([one, other], dim) if whole.shape[dim] > 1 else one for one, other, whole in joined]


def _trained_by_itself(own: OwnStep, begin: list[torch.Tensor], pushes: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    parameters: list[torch.Tensor] = [torch.nn.Parameter(p.clone()) for p in begin]
    optimizer = _with(own, parameters)
    torch.manual_seed(0)
    for push in pushes:
        for parameter, gradient in zip(parameters, push, strict=True):
            parameter.grad = gradient.clone()
        type(optimizer).step(optimizer)
    return [p.detach() for p in parameters]


def _trained_by_graph(own: OwnStep, begin: list[torch.Tensor], pushes: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    parameters = [p.clone() for p in begin]
    states = [own_state(own, p) for p in parameters]
    lr = torch.tensor(own.lr, dtype=torch.float64)
    count = len(parameters)

    def step(*flat: torch.Tensor) -> list[torch.Tensor]:
        rest = iter(flat[2 * count + 1 :])
        own_update(
            own,
            parameters=flat[:count],
            gradients=flat[count : 2 * count],
            state=[{key: next(rest) for key in state} for state in states],
            lr=flat[2 * count],
        )
        return []

    held = [value for state in states for value in state.values()]
    graph = tracing.trace(step, [*parameters, *pushes[0], lr, *held])
    torch.manual_seed(0)
    for push in pushes:
        graph(*parameters, *push, lr.clone(), *held)  # a rate that the step itself changes is set anew each time
    return parameters


def _reading(error: BaseException) -> str:
    """The optimizer's line that reads a value."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if is_user_file(f.filename) or "/torch/optim/" in f.filename]
    where = f"{own[-1].filename}:{own[-1].lineno}: {own[-1].line}" if own else "an unknown line"
    return (
        f"{where} reads a value (a branch, .item(), float() or math on a tensor), so it is no graph; write it with "
        "torch.where and tensor arithmetic, or use another optimizer"
    )
