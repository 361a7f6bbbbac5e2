"""Compare, once, what split modules give with what the whole model gives, on the example batch.

A shape that fits may still mean something else: a module that reshapes its part of the features into all of its heads
computes with half of each. So the whole model runs once; then the split one runs, forward and backward, in eval mode,
and values, the results (the loss, or a module's outputs), and the gradients of parameters that every rank keeps whole
are compared.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call

from kit._torch import trees
from kit.step import exchange
from kit.step.checkpoint import checkpointed
from kit.step.inputs import Inputs
from kit.step.mesh import Axes, Axis
from kit.step.module_trace import forward_of
from kit.step.placement import full_value, is_placed, send_from_first
from kit.step.precision import Precision
from kit.step.recipe import Recipe
from kit.step.strategy import TP, Strategy, StrategyError
from kit.step.tensor.regions import given, split_modules
from kit.step.tensor.same import distance, sample, tolerance
from kit.step.tensor.split import Layout, Split, layout_of, part_of
from kit.step.tensor.unfit import part_text
from kit.step.trace import LossOf

Run = Callable[[nn.Module, Any], Any]  # of a model and its batch: a loss, or the model's own output


@dataclass(slots=True, kw_only=True, eq=False)
class Values:
    """Samples of the outputs of each observed module, call by call, and shape and sample of each result."""

    outputs: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    results: list[tuple[torch.Size, torch.Tensor]] = field(default_factory=list)


def whole_values(
    model: nn.Module, run: Run, batch: Any, *, strategy: Strategy, axes: Axes, recipe: Recipe
) -> Values | None:
    """What the model gives before it is split; None when it is split already or nothing is to be compared."""
    if not isinstance(strategy, TP) or not strategy.verify or is_placed(model) or axes.tensor is None:
        return None
    send_from_first(model, axes)
    layout = layout_of(model, strategy, axes.tensor)
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    return _values(model, run, batch, trained, layout, recipe)


def _values(
    model: nn.Module, run: Run, batch: Any, trained: Mapping[str, torch.Tensor], layout: Layout, recipe: Recipe
) -> Values:
    seen = Values()
    styles = {path: style for path, style in layout.modules if style.kind in ("colwise", "rowwise")}
    wanted = {module: path for path, module in model.named_modules() if path in styles}
    axis = layout.axis
    if axis is None:
        return seen

    def keep(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        path = wanted[module]
        kept, packs = given(styles[path]), layout.packs.get(path, 1)
        if kept is not None and output.shape[kept] % (packs * axis.size):
            return  # tracing will say so
        mine = output if kept is None else part_of(output, Split(axis=axis, dim=kept % output.dim(), packs=packs))
        seen.outputs.setdefault(path, []).append(sample(mine))

    swapped = {f"model.{name}": _computed(value, recipe.precision) for name, value in trained.items()}
    hooks = [module.register_forward_hook(keep) for module in wanted]
    try:
        with _in_eval_mode(model), torch.no_grad():
            of = LossOf(model, run, recipe.precision)
            results = functional_call(of, swapped, (batch, _tensors), tie_weights=True)
    finally:
        for hook in hooks:
            hook.remove()
    seen.results = [(value.shape, sample(value)) for value in results]
    return seen


def require_same_values(
    whole: Values | None, model: nn.Module, run: Run, inputs: Inputs, *, layout: Layout, axes: Axes,
    recipe: Recipe, what: str = "the loss",
) -> None:  # fmt: skip
    """Raise `StrategyError` that names the first module whose output is another than the whole model's.

    One forward and backward on the example. `what`: the results, in words. A collective call.
    """
    axis = axes.tensor
    if whole is None or axis is None:
        return
    wrong: list[str] = []
    calls: dict[str, int] = {}

    def observe(path: str, value: torch.Tensor) -> None:
        number = calls[path] = calls.get(path, -1) + 1
        if number >= len(whole.outputs.get(path, ())):
            return  # a checkpointed module runs again
        far = distance(sample(value), whole.outputs[path][number])
        if not far <= tolerance(value, recipe.precision):
            wrong.append(f"{path} gives other values split than whole (relative difference {far:.1e})")

    results, found = _split_run(model, run, inputs, observe, layout=layout, axes=axes, recipe=recipe)
    wrong += _unequal_results(whole, results, what, recipe.precision)
    wrong += _unequal_gradients(inputs, found, axis, recipe.precision)
    everybody: list[list[str]] = [[] for _ in range(axis.size)]
    dist.all_gather_object(everybody, wrong, group=axis.mesh.get_group())
    first = next((one for one in everybody if one), None)
    if first:
        raise StrategyError(_text(first))


def require_same_outputs(model: nn.Module, inputs: Inputs, *, layout: Layout, axes: Axes, recipe: Recipe) -> None:
    """As `require_same_values`, of one call of a model that is split already: its parameters are gathered for it."""
    trained = {slot.name: full_value(slot) for slot in inputs.slots}
    whole = _values(model, forward_of, inputs.window[0], trained, layout, recipe)
    require_same_values(whole, model, forward_of, inputs, layout=layout, axes=axes, recipe=recipe, what="the output")


def _split_run(
    model: nn.Module, run: Run, inputs: Inputs, observe: Callable[[str, torch.Tensor], None], *, layout: Layout,
    axes: Axes, recipe: Recipe,
) -> tuple[list[torch.Tensor], Sequence[torch.Tensor | None]]:  # fmt: skip
    """The results of the split model, and the gradients of its slots' parameters."""
    leaves = [
        exchange.gathered(slot, slot.local, axes, recipe.precision).detach().requires_grad_() for slot in inputs.slots
    ]
    names = [f"model.{slot.name}" for slot in inputs.slots]
    swapped = {f"model.{name}": value for name, value in inputs.others.items()} | dict(zip(names, leaves, strict=True))

    def backward(result: Any) -> Any:
        results = _tensors(result)
        roots = [value for value in results if value.requires_grad]
        if not roots:
            return results, [None] * len(leaves)
        return results, torch.autograd.grad(roots, leaves, _weights(roots), allow_unused=True)

    try:
        with (
            _in_eval_mode(model),
            torch.enable_grad(),
            split_modules(model, layout, inputs.device, observe),
            checkpointed(model, recipe.checkpointing),
        ):
            of = LossOf(model, run, recipe.precision)
            return functional_call(of, swapped, (inputs.window[0], backward), tie_weights=True)  # type: ignore[no-any-return]
    except RuntimeError as error:
        raise StrategyError(part_text(error, model)) from error


def _text(wrong: list[str]) -> str:
    more = f" ({len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return (
        f"on the example batch {wrong[0]}{more}. A module before it may reshape its part of the features by a fixed "
        "number of heads (write -1 there and give head_dim), a fused projection may need packed={pattern: 3}, or a "
        "module that runs on a part of the sequence may lack the style 'sequence'. The model is split now: build it "
        "again; TP(verify=False) trains without this comparison"
    )


def _unequal_results(
    whole: Values, results: Sequence[torch.Tensor], what: str, precision: Precision | None
) -> list[str]:
    found = []
    for number, (value, (shape, expected)) in enumerate(zip(results, whole.results, strict=True)):
        name = f"{what} {number}" if len(results) > 1 else what
        if value.shape != shape:
            found.append(
                f"{name} is {list(value.shape)}, of the whole model {list(shape)}: it is still in parts; gather it "
                "with 'colwise_rep' for a last Linear, or 'gather_output' for a last part of the sequence"
            )
            continue
        far = distance(sample(value), expected)
        if value.is_floating_point() and not far <= tolerance(value, precision):
            found.append(f"{name} has other values split than whole (relative difference {far:.1e})")
    return found


def _unequal_gradients(
    inputs: Inputs, gradients: Sequence[torch.Tensor | None], axis: Axis, precision: Precision | None
) -> list[str]:
    """Whole parameters whose gradient is not the same on all ranks of the axis."""
    names, samples = [], []
    for slot, gradient in zip(inputs.slots, gradients, strict=True):
        if gradient is not None and slot.split is None and not slot.summed:
            names.append(slot.name)
            samples.append(sample(gradient))
    everybody: list[list[torch.Tensor]] = [[] for _ in range(axis.size)]
    dist.all_gather_object(everybody, samples, group=axis.mesh.get_group())
    return [
        f"the gradient of {name} differs between ranks that keep it whole (relative difference {far:.1e})"
        for row, name in enumerate(names)
        if not (far := max(distance(one[row], everybody[0][row]) for one in everybody))
        <= tolerance(samples[row], precision)
    ]


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in trees.leaves(result) if isinstance(leaf, torch.Tensor)]


def _weights(roots: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients to start from, the same on all ranks: of a plain sum that of a norm would vanish."""
    dice = torch.Generator().manual_seed(0)
    return [torch.randn(root.shape, generator=dice).to(root) for root in roots]


def _computed(value: torch.Tensor, precision: Precision | None) -> torch.Tensor:
    """A parameter in the format to compute in."""
    return value if precision is None or not value.is_floating_point() else value.to(getattr(torch, precision.compute))


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
