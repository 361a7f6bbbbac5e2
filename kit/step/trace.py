"""Trace the whole step (gather, forward, loss, backward, reduce, update) into one flat graph.

The step is written as one function of flat tensors and run once on fake tensors. Collectives are
explicit functional operators, so they are nodes like any other, and the passes that follow are
plain graph rewrites. Parameters, state and buffers are changed in place.
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from kit._torch import collectives, tracing, trees
from kit.step import exchange
from kit.step.checkpoint import checkpointed
from kit.step.inputs import Inputs, Unflattened
from kit.step.mesh import Axes
from kit.step.precision import Precision
from kit.step.provenance import fill_gaps, is_user_file, note, watch_backward, watch_forward
from kit.step.recipe import Recipe
from kit.step.tensor.regions import split_modules
from kit.step.tensor.split import Layout
from kit.step.tensor.unfit import part_text
from kit.step.update import update

Loss = Callable[[nn.Module, Any], "torch.Tensor | tuple[torch.Tensor, torch.Tensor]"]


class TraceError(ValueError):
    """A step that does not become one static graph."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traced:
    """The flat graph of a step and which parameters it trains."""

    module: torch.fx.GraphModule
    unused: tuple[str, ...]  # parameters that the loss does not depend on: neither reduced nor updated


class LossOf(nn.Module):
    """The loss as a module, so that `functional_call` can swap the model's parameters."""

    def __init__(self, model: nn.Module, loss: Loss, precision: Precision | None) -> None:
        super().__init__()
        self.model = model
        self._loss = loss
        self._precision = precision

    def forward(self, batch: Any, then: Callable[[Any], Any]) -> Any:
        """`then` of the loss: the backward belongs inside, checkpointed modules run again there."""
        with watch_forward(self.model):
            result = self._of(batch)
        return then(result)

    def _of(self, batch: Any) -> Any:
        if self._precision is None:
            return self._loss(self.model, batch)
        dtype = getattr(torch, self._precision.compute)

        def cast(module: nn.Module, args: Any, kwargs: Any) -> Any:
            return trees.mapped(lambda leaf: _as(leaf, dtype), (args, kwargs))

        hook = self.model.register_forward_pre_hook(cast, with_kwargs=True)
        try:
            return self._loss(self.model, batch)
        finally:
            hook.remove()


def _as(leaf: Any, dtype: torch.dtype) -> Any:
    return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


def trace_step(
    model: nn.Module, loss: Loss, inputs: Inputs, axes: Axes, recipe: Recipe, layout: Layout | None = None
) -> Traced:
    """The graph of one optimizer step over the window of micro-batches that `inputs` describes.

    It returns the loss, when gradients are clipped their norm before, and the gradients when the optimizer
    has no static update.
    Raises `TraceError` naming the user's line when values decide what is run.
    """
    _refuse_hooks(model)
    unused: list[str] = []

    def step(*flat: torch.Tensor) -> list[torch.Tensor]:
        return _run(LossOf(model, loss, recipe.precision), inputs.unflatten(flat), inputs, axes, recipe, unused)

    return Traced(module=flat_graph(step, model, inputs, recipe, layout), unused=tuple(unused))


def flat_graph(
    function: Callable[..., list[torch.Tensor]],
    model: nn.Module,
    inputs: Inputs,
    recipe: Recipe,
    layout: Layout | None = None,
) -> torch.fx.GraphModule:
    """The flat graph of `function(*inputs)`, which runs `model`, with notes on its nodes. Raises `TraceError`."""
    layout = layout or Layout()
    try:
        with split_modules(model, layout, inputs.device), checkpointed(model, recipe.checkpointing):
            module = tracing.trace(function, inputs.examples())
    except tracing.DATA_DEPENDENT as error:
        raise TraceError(_data_dependent_text(error)) from error
    except RuntimeError as error:
        if layout.axis is None:
            raise
        raise TraceError(part_text(error, model)) from error
    _refuse_in_place_collectives(module)
    _refuse_own_constants(module, model)
    fill_gaps(module)
    return module


def _refuse_in_place_collectives(module: torch.fx.GraphModule) -> None:
    for node in module.graph.nodes:
        if collectives.is_in_place_collective(node.target):
            source = node.meta.get("custom", {}).get("kit_source", "unknown line")
            raise TraceError(
                f"{node.target} at {source}: an in-place collective leaves no wait in the graph, so its result "
                "would be read too early; use torch.distributed.nn.functional or the functional collective instead"
            )


def _refuse_own_constants(module: torch.fx.GraphModule, model: nn.Module) -> None:
    """A parameter of the model that ends as a constant of the graph would never be trained again."""
    own = {id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    for node in module.graph.nodes:
        name = own.get(id(getattr(module, str(node.target), None))) if node.op == "get_attr" else None
        if name is not None:
            source = node.meta.get("custom", {}).get("kit_source") or "an unknown line"
            raise TraceError(
                f"{source}: the step reads {name} of the model in a way that does not go through the module, so the "
                "graph would keep its present value; use the `model` argument of the loss and module attributes"
            )


def _refuse_hooks(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks:
            raise TraceError(
                f"{name} has a gradient hook, which a static step would not call; remove it and change the gradient "
                "in the loss, or use clip_norm="
            )


def _run(
    loss: LossOf, args: Unflattened, inputs: Inputs, axes: Axes, recipe: Recipe, unused: list[str]
) -> list[torch.Tensor]:
    slots = inputs.slots
    whole = [
        exchange.gathered(slot, local, axes, recipe.precision) for slot, local in zip(slots, args.locals, strict=True)
    ]
    total, weight, local = _accumulate(loss, args, inputs, axes, whole)
    trained = {row for group in inputs.groups for row in group.slot_rows}
    unused[:] = [slots[row].name for row in sorted(trained) if local[row] is None]
    with tracing.node_note(note("backward", "loss", carries="(loss)")):
        if weight is None:
            outputs = [exchange.summed(total, axes)]
        else:
            sums = exchange.summed(torch.stack([total, weight.to(total.dtype)]), axes)
            outputs, weight = [sums[0] / sums[1]], sums[1]
    gradients = [
        None if g is None else exchange.reduced(slot, g, axes, recipe.precision)
        for slot, g in zip(slots, local, strict=True)
    ]
    if weight is not None:
        with tracing.node_note(note("backward", "loss")):
            gradients = [None if g is None else g / weight for g in gradients]
    with tracing.node_note(note("optimizer")), torch.no_grad():
        if recipe.clip_norm is not None:
            gradients, norm = exchange.clipped(slots, gradients, axes, recipe.clip_norm)
            outputs.append(norm)
        if inputs.eager_reason:
            return [*outputs, *(gradient for gradient in gradients if gradient is not None)]
        _update(args, inputs, gradients)
    return outputs


def _update(args: Unflattened, inputs: Inputs, gradients: Sequence[torch.Tensor | None]) -> None:
    for number, group in enumerate(inputs.groups):
        rows = [i for i in group.slot_rows if gradients[i] is not None]
        update(
            group.rule,
            parameters=[args.locals[i] for i in rows],
            gradients=[g for i in rows if (g := gradients[i]) is not None],
            state=[args.states[i] for i in rows],
            lr=args.rates[number],
        )


def _accumulate(
    loss: LossOf, args: Unflattened, inputs: Inputs, axes: Axes, whole: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor | None, list[torch.Tensor | None]]:
    """Forward and backward over the window: the local loss, its weight, the local gradients.

    A loss that is a mean is weighed by rows, which are known now: its gradients come out already
    divided by the rows of all ranks. A loss that is (sum, count) is divided after the reduction.
    """
    names = [f"model.{slot.name}" for slot in inputs.slots]
    others = {f"model.{name}": value for name, value in args.others.items()}
    rows = [rows_of(batch) for batch in args.window]
    trained = sorted(row for group in inputs.groups for row in group.slot_rows)
    total: torch.Tensor | None = None
    weight: torch.Tensor | None = None
    gradients: list[torch.Tensor | None] = [None] * len(whole)
    for number, batch in enumerate(args.window):
        with tracing.node_note(note("forward")):
            leaves = [value.detach().requires_grad_() for value in whole]
        swapped = others | dict(zip(names, leaves, strict=True))
        backward = partial(
            _backward, leaves=[leaves[row] for row in trained], share=rows[number] / (sum(rows) * axes.size)
        )
        with torch.enable_grad():
            value, count, found = functional_call(loss, swapped, (batch, backward), tie_weights=True)
        with tracing.node_note(note("backward", "loss")):
            total = value.detach() if total is None else total + value.detach()
            weight = count if weight is None or count is None else weight + count
            for row, gradient in zip(trained, found, strict=True):
                gradients[row] = _plus(gradients[row], gradient)
    if total is None:
        raise TraceError("the window holds no micro-batch; expected at least one")
    return total, weight, gradients


def _backward(
    result: Any, *, leaves: Sequence[torch.Tensor], share: float
) -> tuple[torch.Tensor, torch.Tensor | None, tuple[torch.Tensor | None, ...]]:
    """Local loss (times `share` when it is a mean), its weight when it is (sum, count), the gradients."""
    value, count = _checked(result)
    if count is None:
        with tracing.node_note(note("forward", "loss")):
            value = value * share
    with watch_backward(value):
        return value, count, torch.autograd.grad(value, leaves, allow_unused=True)


def _plus(old: torch.Tensor | None, new: torch.Tensor | None) -> torch.Tensor | None:
    if old is None or new is None:
        return new if old is None else old
    return old + new


def _checked(result: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    value, count = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        seen = f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise TraceError(
            f"loss(model, batch) returned {seen}; expected a scalar mean over the micro-batch's rows, or a pair "
            "(sum, count) whose sum is divided by the count over all ranks and micro-batches"
        )
    if not value.requires_grad:
        raise TraceError(
            "loss(model, batch) returned a value that depends on no trainable parameter; check that it uses the "
            "`model` argument and not a detached copy"
        )
    if count is not None and not isinstance(count, torch.Tensor):
        count = torch.full((), count, dtype=value.dtype, device=value.device)
    return value.reshape(()), None if count is None else count.detach().reshape(())


def rows_of(batch: Any) -> int:
    """Rows (dim 0) of the first tensor of a micro-batch."""
    for leaf in trees.leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0:
            return int(leaf.shape[0])
    raise TraceError("the batch holds no tensor with a dim 0; expected tensors of shape [micro-batch, ...]")


def _data_dependent_text(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_user_file(f.filename)]
    where = f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else "an unknown line"
    return (
        f"{where}: what runs here depends on values (a branch, .item(), .tolist() or a shape made from data), so the "
        "step is not one static graph; use torch.where or masks, or compute it outside and pass it in the batch"
    )
