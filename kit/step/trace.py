"""Trace the whole step (gather, forward, loss, backward, reduce, update) into one flat graph.

The step is written as one function of flat tensors and run once on fake tensors. Collectives are
explicit functional operators, so they are nodes like any other, and the passes that follow are
plain graph rewrites. Parameters, state and buffers are changed in place.
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from kit._torch import collectives, tracing, trees
from kit.step.inputs import Inputs, Unflattened
from kit.step.mesh import Axis
from kit.step.placement import Slot
from kit.step.provenance import fill_gaps, is_user_file, note, owner_of, watch_backward, watch_forward
from kit.step.update import update

Loss = Callable[[nn.Module, Any], "torch.Tensor | tuple[torch.Tensor, torch.Tensor]"]


class TraceError(ValueError):
    """A step that does not become one static graph."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traced:
    """The flat graph of a step and which parameters it trains."""

    module: torch.fx.GraphModule
    unused: tuple[str, ...]  # parameters that the loss does not depend on: neither reduced nor updated


class _LossOf(nn.Module):
    """The loss as a module, so that `functional_call` can swap the model's parameters."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Any) -> "torch.Tensor | tuple[torch.Tensor, torch.Tensor]":
        return self._loss(self.model, batch)


def trace_step(model: nn.Module, loss: Loss, inputs: Inputs, axis: Axis) -> Traced:
    """The graph of one optimizer step over the window of micro-batches that `inputs` describes.

    Raises `TraceError` naming the user's line when values decide what is run.
    """
    unused: list[str] = []

    def step(*flat: torch.Tensor) -> torch.Tensor:
        return _run(model, loss, inputs.unflatten(flat), inputs, axis, unused)

    try:
        module = tracing.trace(step, inputs.examples())
    except tracing.DATA_DEPENDENT as error:
        raise TraceError(_data_dependent_text(error)) from error
    for node in module.graph.nodes:
        if collectives.is_in_place_collective(node.target):
            source = node.meta.get("custom", {}).get("kit_source", "unknown line")
            raise TraceError(
                f"{node.target} at {source}: an in-place collective leaves no wait in the graph, so its result "
                "would be read too early; use torch.distributed.nn.functional or the functional collective instead"
            )
    fill_gaps(module)
    return Traced(module=module, unused=tuple(unused))


def _run(
    model: nn.Module, loss: Loss, args: Unflattened, inputs: Inputs, axis: Axis, unused: list[str]
) -> torch.Tensor:
    whole = [_gathered(slot, local, axis) for slot, local in zip(inputs.slots, args.locals, strict=True)]
    total, weight, gradients = _accumulate(model, loss, args, inputs, axis, whole)
    unused[:] = [slot.name for slot, g in zip(inputs.slots, gradients, strict=True) if g is None]
    with tracing.node_note(note("backward", "loss")):
        if weight is None:
            mean = collectives.all_reduce_sum(total, axis.group)
        else:
            sums = collectives.all_reduce_sum(torch.stack([total, weight.to(total.dtype)]), axis.group)
            mean, weight = sums[0] / sums[1], sums[1]
    reduced = [None if g is None else _reduced(slot, g, axis) for slot, g in zip(inputs.slots, gradients, strict=True)]
    if weight is not None:
        with tracing.node_note(note("backward", "loss")):
            reduced = [None if g is None else g / weight for g in reduced]
    with tracing.node_note(note("optimizer")), torch.no_grad():
        for number, group in enumerate(inputs.groups):
            rows = [i for i in group.slot_rows if reduced[i] is not None]
            update(
                group.rule,
                parameters=[args.locals[i] for i in rows],
                gradients=[g for i in rows if (g := reduced[i]) is not None],
                state=[args.states[i] for i in rows],
                lr=args.rates[number],
            )
    return mean


def _accumulate(
    model: nn.Module, loss: Loss, args: Unflattened, inputs: Inputs, axis: Axis, whole: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor | None, list[torch.Tensor | None]]:
    """Forward and backward over the window: the local loss, its weight, the local gradients.

    A loss that is a mean is weighed by rows, which are known now: its gradients come out already
    divided by the rows of all ranks. A loss that is (sum, count) is divided after the reduction.
    """
    module = _LossOf(model, loss)
    tensors = {f"model.{slot.name}": value for slot, value in zip(inputs.slots, whole, strict=True)}
    tensors |= {f"model.{name}": value for name, value in args.others.items()}
    rows = [rows_of(batch) for batch in args.window]
    total: torch.Tensor | None = None
    weight: torch.Tensor | None = None
    gradients: list[torch.Tensor | None] = [None] * len(whole)
    for number, batch in enumerate(args.window):
        with tracing.node_note(note("forward")):
            leaves = [value.detach().requires_grad_() for value in whole]
        swapped = tensors | dict(zip((f"model.{slot.name}" for slot in inputs.slots), leaves, strict=True))
        with torch.enable_grad():
            with watch_forward(model):
                result = functional_call(module, swapped, (batch,), tie_weights=True)
            value, count = _checked(result)
            if count is None:
                with tracing.node_note(note("forward", "loss")):
                    value = value * (rows[number] / (sum(rows) * axis.size))
            with watch_backward(value):
                found = torch.autograd.grad(value, leaves, allow_unused=True)
        with tracing.node_note(note("backward", "loss")):
            total = value.detach() if total is None else total + value.detach()
            weight = count if weight is None or count is None else weight + count
            gradients = [_plus(old, new) for old, new in zip(gradients, found, strict=True)]
    if total is None:
        raise TraceError("the window holds no micro-batch; expected at least one")
    return total, weight, gradients


def _plus(old: torch.Tensor | None, new: torch.Tensor | None) -> torch.Tensor | None:
    if old is None or new is None:
        return new if old is None else old
    return old + new


def _gathered(slot: Slot, local: torch.Tensor, axis: Axis) -> torch.Tensor:
    if not slot.sharded:
        return local
    with tracing.node_note(note("forward", owner_of(slot.name))):
        whole = collectives.all_gather(local, axis.group, axis.size)
        return whole[: slot.shape[0]] if whole.shape[0] != slot.shape[0] else whole


def _reduced(slot: Slot, gradient: torch.Tensor, axis: Axis) -> torch.Tensor:
    with tracing.node_note(note("backward", owner_of(slot.name))):
        if not slot.sharded:
            return collectives.all_reduce_sum(gradient, axis.group)
        missing = axis.size * slot.padded_rows - slot.shape[0]
        if missing:
            gradient = nn.functional.pad(gradient, [0, 0] * (gradient.dim() - 1) + [0, missing])
        return collectives.reduce_scatter_sum(gradient.contiguous(), axis.group, axis.size)


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
