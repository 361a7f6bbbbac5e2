"""Trace a module's forward and backward into one flat graph whose last inputs are the outputs' gradients.

As the trace of a whole step, without loss and update: what a module needs to be used like any other,
with `loss.backward()` and an optimizer outside. Gradients leave it averaged over data-parallel ranks, as
DDP and FSDP2 leave them; parts of split parameters have the gradients of those parts.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from kit._torch import foreach, tracing, trees
from kit.step import exchange
from kit.step.inputs import Inputs
from kit.step.mesh import Axes
from kit.step.placement import Placement
from kit.step.provenance import note, watch_backward
from kit.step.recipe import Recipe
from kit.step.tensor.split import Layout
from kit.step.trace import LossOf, TraceError, flat_graph

Call = tuple[tuple[Any, ...], dict[str, Any]]  # arguments of one call of the module, by place and by name

_TANGENT = "(gradient of an output)"
_PLAIN = (type(None), bool, int, float, complex, str)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor stands among a graph's results; stands for it in the form of the module's output."""

    row: int


@dataclass(kw_only=True, eq=False)
class Results:
    """What the graph returns, in order; filled while it is traced.

    `form`: the module's output with a `Place` for each tensor. `differentiable`: rows of results that the
    backward takes a gradient of, in the order of the graph's last inputs. `reached`: inputs that get a
    gradient: rows of slots, then (counted on) rows of the batch's tensors.
    """

    form: Any = None
    count: int = 0
    differentiable: tuple[int, ...] = ()
    reached: tuple[int, ...] = ()


def call_inputs(model: nn.Module, placement: Placement, call: Call) -> Inputs:
    """The graph inputs of one call of a placed module: no optimizer state, no learning rate."""
    placed = {slot.name for slot in placement.slots}
    others = {name: p.detach() for name, p in model.named_parameters() if name not in placed}
    example = trees.mapped(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, call)
    return Inputs(
        slots=placement.slots,
        states=tuple({} for _ in placement.slots),
        groups=(),
        others=others | dict(model.named_buffers()),
        rates=(),
        window=(example,),
    )


def trace_module(
    model: nn.Module, inputs: Inputs, axes: Axes, recipe: Recipe, wanted: Sequence[bool] | None, layout: Layout
) -> tuple[torch.fx.GraphModule, Results]:
    """The flat graph of one call and what it returns.

    `wanted`: for each tensor of the batch, whether it wants a gradient too; None traces the forward only.
    `layout`: which modules run on parts (tensor parallel), none of them in an empty one.
    Raises `TraceError` when values decide what is run.
    """
    results = Results()

    def run(*flat: torch.Tensor) -> list[torch.Tensor]:
        return _run(model, flat, inputs, axes, recipe, wanted, results)

    module = flat_graph(run, model, inputs, recipe, layout)
    _tangents_become_inputs(module)
    return module, results


def _run(
    model: nn.Module,
    flat: Sequence[torch.Tensor],
    inputs: Inputs,
    axes: Axes,
    recipe: Recipe,
    wanted: Sequence[bool] | None,
    results: Results,
) -> list[torch.Tensor]:
    args = inputs.unflatten(flat)
    slots = inputs.slots
    whole = [exchange.gathered(s, local, axes, recipe.precision) for s, local in zip(slots, args.locals, strict=True)]
    with tracing.node_note(note("forward")):
        leaves = [value.detach().requires_grad_(wanted is not None) for value in whole]
        data = [t.detach().requires_grad_(w) for t, w in _with_wishes(args.window, wanted)]
    rest = iter(data)
    call = trees.mapped(lambda leaf: next(rest) if isinstance(leaf, torch.Tensor) else leaf, args.window[0])
    swapped = {f"model.{slot.name}": leaf for slot, leaf in zip(slots, leaves, strict=True)}
    swapped |= {f"model.{name}": value for name, value in args.others.items()}
    of = [*leaves, *(tensor for tensor in data if tensor.requires_grad)]
    then = partial(_finish, of=of if wanted is not None else [], results=results)
    with torch.set_grad_enabled(wanted is not None):
        forwarded = LossOf(model, forward_of, recipe.precision)
        outputs, found = functional_call(forwarded, swapped, (call, then), tie_weights=True)
    if wanted is None:
        return outputs  # type: ignore[no-any-return]
    rows = [*range(len(slots)), *(len(slots) + row for row, wish in enumerate(wanted) if wish)]
    results.reached = tuple(row for row, gradient in zip(rows, found, strict=True) if gradient is not None)
    present = [(row, gradient) for row, gradient in zip(rows, found, strict=True) if gradient is not None]
    return [*outputs, *_exchanged(present, inputs, axes, recipe)]


def _with_wishes(window: list[Any], wanted: Sequence[bool] | None) -> list[tuple[torch.Tensor, bool]]:
    tensors = [leaf for leaf in trees.leaves(window) if isinstance(leaf, torch.Tensor)]
    return list(zip(tensors, wanted or [False] * len(tensors), strict=True))


def forward_of(model: nn.Module, call: Call) -> Any:
    """What a model returns for a call."""
    return model(*call[0], **call[1])


def _finish(output: Any, *, of: Sequence[torch.Tensor], results: Results) -> tuple[list[torch.Tensor], Sequence[Any]]:
    """The output's tensors and, when `of` is not empty, the gradients of them with respect to `of`."""
    tensors: list[torch.Tensor] = []
    results.form = trees.mapped(partial(_placed, tensors), output)
    results.count = len(tensors)
    with tracing.node_note(note("forward")):
        outputs = [tensor.detach() for tensor in tensors]
    if not of:
        return outputs, []
    results.differentiable = tuple(row for row, tensor in enumerate(tensors) if tensor.requires_grad)
    roots = [tensors[row] for row in results.differentiable]
    if not roots:
        raise TraceError(
            "no output of the module depends on a trainable parameter or on an input that wants a gradient; call it "
            "under torch.no_grad() if only its values are wanted"
        )
    with tracing.node_note(note("backward", _TANGENT)):
        tangents = [torch.empty_like(root) for root in roots]
    with ExitStack() as stack:
        for root in roots:
            stack.enter_context(watch_backward(root))
        return outputs, torch.autograd.grad(roots, of, tangents, allow_unused=True)


def _placed(tensors: list[torch.Tensor], leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        known = next((row for row, tensor in enumerate(tensors) if tensor is leaf), None)
        if known is None:
            tensors.append(leaf)
        return Place(len(tensors) - 1 if known is None else known)
    if not isinstance(leaf, _PLAIN):
        raise TraceError(
            f"the module returned a {type(leaf).__name__}; expected tensors and plain values in tuples, lists and "
            "dicts, which is what a static graph can return"
        )
    return leaf


def _exchanged(
    present: Sequence[tuple[int, torch.Tensor]], inputs: Inputs, axes: Axes, recipe: Recipe
) -> list[torch.Tensor]:
    """Gradients of parameters averaged over ranks; those of the batch are the rank's own."""
    slots = inputs.slots
    summed = [exchange.reduced(slots[row], g, axes, recipe.precision) for row, g in present if row < len(slots)]
    own = [gradient for row, gradient in present if row >= len(slots)]
    with tracing.node_note(note("backward", "(mean over ranks)")), torch.no_grad():
        return [*(foreach.mul(summed, 1.0 / axes.size) if summed else []), *own]


def _tangents_become_inputs(module: torch.fx.GraphModule) -> None:
    """Make inputs of the nodes that stand for the outputs' gradients; all nodes behind them are the backward."""
    graph = module.graph
    nodes = list(graph.nodes)
    tangents = [node for node in nodes if node.target is torch.ops.aten.empty_like.default and _is_tangent(node)]
    if not tangents:
        return
    for node in nodes[nodes.index(tangents[0]) :]:
        if node.op == "call_function":
            node.meta["custom"] = {**node.meta.get("custom", note("backward")), "kit_phase": "backward"}
    last = [node for node in nodes if node.op == "placeholder"][-1]
    for number, node in enumerate(tangents):
        with graph.inserting_after(last):
            last = graph.placeholder(f"tangent_{number}")
        last.meta = {"val": node.meta["val"]}
        node.replace_all_uses_with(last)
        graph.erase_node(node)
    module.recompile()


def _is_tangent(node: torch.fx.Node) -> bool:
    return bool(node.meta.get("custom", {}).get("kit_module") == _TANGENT)
