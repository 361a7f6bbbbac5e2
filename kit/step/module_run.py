"""Run a forward graph and a backward graph as one operation of autograd.

The bridge between static graphs and everything around them that is not: the user's loss, hooks, the
optimizer. Autograd sees one function of the parameters and inputs; what it keeps is checked by torch for
changes in place, as always.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from kit._torch.executors import EXECUTORS
from kit.step.eager_update import as_shown
from kit.step.inputs import Inputs
from kit.step.module_trace import Results
from kit.step.split import Halves, split
from kit.step.tensor.same import SameGradients

Run = Callable[..., Sequence[torch.Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Joint:
    """Two graphs ready to run, and what their inputs and results mean."""

    inputs: Inputs
    results: Results
    halves: Halves
    forward: Run
    backward: Run
    tangents: tuple[torch.Tensor, ...]  # (fake) values with the shape, dtype and strides that the backward takes
    same: SameGradients  # what ranks that share a split model must be given alike

    def __call__(self, batch: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results for the batch's tensors, with a gradient function."""
        return list(_Function.apply(self, *(slot.public for slot in self.inputs.slots), *batch))  # type: ignore[no-untyped-call]


def joint_of(
    module: torch.fx.GraphModule, inputs: Inputs, results: Results, executor: str, same: SameGradients
) -> Joint:
    """Split the flat graph of a forward and a backward, and make what runs each."""
    halves = split(module, results=results.count, tangents=len(results.differentiable))
    taken = [node.meta["val"] for node in halves.backward.graph.nodes if node.op == "placeholder"]
    return Joint(
        inputs=inputs,
        results=results,
        halves=halves,
        forward=EXECUTORS[executor](halves.forward),
        backward=EXECUTORS[executor](halves.backward),
        tangents=tuple(taken[len(taken) - len(results.differentiable) :]),
        same=same,
    )


class _Function(torch.autograd.Function):
    """Parameters and the batch's tensors to results; its backward gives gradients as the parameters are shown."""

    @staticmethod
    def forward(ctx: Any, joint: Joint, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch = [tensor.detach() for tensor in tensors[len(joint.inputs.slots) :]]
        given = [*joint.inputs.held(), *batch]
        made = list(joint.forward(*given))
        count, halves = joint.results.count, joint.halves
        ctx.joint = joint
        ctx.unread = {row: given[row] for row in halves.unread}
        ctx.save_for_backward(*(given[row] for row in halves.kept_inputs if row not in halves.unread), *made[count:])
        ctx.versions = _versions(joint)
        results = tuple(made[:count])
        plain = [value for row, value in enumerate(results) if row not in joint.results.differentiable]
        ctx.mark_non_differentiable(*plain)
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        joint: Joint = ctx.joint
        _require_unchanged(joint, ctx.versions)
        kept = list(ctx.saved_tensors)
        for place, row in enumerate(joint.halves.kept_inputs):
            if row in joint.halves.unread:
                kept.insert(place, ctx.unread[row])
        rows = joint.results.differentiable
        tangents = [_laid_out(gradients[row], like) for row, like in zip(rows, joint.tangents, strict=True)]
        joint.same.require(tangents)
        found = dict(zip(joint.results.reached, joint.backward(*kept, *tangents), strict=True))
        slots = joint.inputs.slots
        shown = [as_shown(slot, found[row]) if row in found else None for row, slot in enumerate(slots)]
        batch = range(len(slots), len(ctx.needs_input_grad) - 1)
        return None, *shown, *(found.get(row) for row in batch)


def _laid_out(gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The gradient with the dtype and strides that the graph was traced for; autograd promises neither."""
    if gradient.stride() == like.stride() and gradient.dtype == like.dtype:
        return gradient
    laid_out = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=gradient.device)
    return laid_out.copy_(gradient)


def _versions(joint: Joint) -> list[int]:
    """How often each parameter in parts was changed: torch counts on the DTensor, not on the part that is kept."""
    slots = joint.inputs.slots
    return [slots[row].public._version for row in joint.halves.kept_inputs if row < len(slots) and slots[row].in_parts]


def _require_unchanged(joint: Joint, before: list[int]) -> None:
    if _versions(joint) != before:
        raise RuntimeError(
            "a parameter needed for gradient computation was changed in place between forward and backward; expected "
            "the optimizer's step after the backward of every forward before it"
        )
