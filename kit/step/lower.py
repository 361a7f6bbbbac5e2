"""From a model to the graph of its step: place, trace, rewrite. Nothing runs yet.

Apart from compiling, because planning does the same for ranks that do not exist.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from kit import progress
from kit._torch import collectives
from kit._torch.fake import is_fake
from kit.graph.from_fx import graph_of
from kit.graph.record import Graph
from kit.step.inputs import Inputs, inputs_of
from kit.step.mesh import Axes
from kit.step.passes.choice import Change, Choice, changes_of
from kit.step.passes.memory import Memory
from kit.step.passes.proof import PassError, Values, apply_pass, require_peak
from kit.step.placement import place
from kit.step.plan import plan_of
from kit.step.recipe import Recipe
from kit.step.record import Plan
from kit.step.sample import sample_of
from kit.step.strategy import Strategy
from kit.step.tensor.split import Layout, layout_of
from kit.step.trace import Loss, Traced, trace_step


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """The step's graph after one pass; "traced" before any.

    `failure`: why the pass was undone, "" when it was kept; `module` is then the graph before it.
    """

    name: str
    module: torch.fx.GraphModule
    input_names: tuple[str, ...]
    failure: str = ""

    @cached_property
    def graph(self) -> Graph:
        """The graph as a record, priced when it is first asked for."""
        placeholders = [node.name for node in self.module.graph.nodes if node.op == "placeholder"]
        names = dict(zip(placeholders, self.input_names, strict=False))  # a gradient that comes in has no name
        return graph_of(self.module, name=self.name, parameters=names)

    @cached_property
    def peak_bytes(self) -> int:
        """The most bytes alive at once, without the record, which takes longer to make."""
        return Memory(self.module).peak_bytes()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lowered:
    """A step as graphs: `stages` from the trace to what runs, its inputs and its plan."""

    inputs: Inputs
    stages: tuple[Stage, ...]
    plan: Plan

    @property
    def module(self) -> torch.fx.GraphModule:
        """The graph that runs."""
        return self.stages[-1].module


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draft:
    """A step that is placed and traced; it can be rewritten in several ways. `optimizer`: the name of its class."""

    inputs: Inputs
    traced: Traced
    layout: Layout
    strategy: Strategy
    axes: Axes
    optimizer: str

    def lowered(self, choice: Choice) -> Lowered:
        """The step after the passes of `choice`."""
        stages = rewrite(self.traced, self.inputs, self.strategy, choice)
        plan = plan_of(
            stages[-1].module,
            self.inputs,
            strategy=repr(self.strategy),
            axes=self.axes,
            passes=[stage.name for stage in stages[1:] if not stage.failure],
            unused=self.traced.unused,
        )
        undone = tuple(stage.failure for stage in stages if stage.failure)
        why = self.inputs.eager_reason
        eager = self.optimizer if why else ""
        plan = replace(plan, undone=undone, eager_optimizer=eager, eager_reason=why)
        return Lowered(inputs=self.inputs, stages=tuple(stages), plan=plan)


def draft(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    window: list[Any],
    *,
    strategy: Strategy,
    axes: Axes,
    recipe: Recipe,
    work: progress.Task,
) -> Draft:
    """Place the model and trace its step over `window`."""
    layout = layout_of(model, strategy, axes.tensor)
    inputs = inputs_of(model, optimizer, place(model, optimizer, strategy, axes, layout), window)
    work.advance("parameters placed")
    traced = trace_step(model, loss, inputs, axes, recipe, layout)
    work.advance(f"traced {len(traced.module.graph.nodes)} nodes")
    return Draft(
        inputs=inputs, traced=traced, layout=layout, strategy=strategy, axes=axes, optimizer=type(optimizer).__name__
    )


def rewrite(traced: Traced, inputs: Inputs, strategy: Strategy, choice: Choice | None = None) -> list[Stage]:
    """The graph after each pass, the last one is what runs. A pass that fails its proof is left out and says why.

    `choice`: None for the passes of the strategy.
    """
    choice = choice or Choice(bucket_mb=strategy.bucket_mb)
    changes = [
        Change(name="remove dead code", run=lambda gm: None),
        *changes_of(strategy, choice, ranks=_sharing_ranks(traced.module)),
    ]
    first = Stage(name="traced", module=traced.module, input_names=tuple(inputs.names()))
    # A planned step has no values to compare; pricing it after each pass, for its peak, was half the cost of a plan.
    peaks = not any(is_fake(slot.local) for slot in inputs.slots)
    values = Values(sample_of(inputs, first.graph, asked=choice.check_values) if peaks else None)
    stages = _applied(first, changes, None, choice.refused, peaks=peaks)
    if values.difference(first.module, stages[-1].module):
        # Again, to find the pass that changes them.
        stages = _applied(first, changes, values, choice.refused, peaks=peaks)
    return stages


def _applied(
    first: Stage, changes: Sequence[Change], values: Values | None, refused: Sequence[str], *, peaks: bool
) -> list[Stage]:
    """Each change after the other; one that fails its proof leaves the graph as it was."""
    stages = [first]
    for change in changes:
        before = stages[-1]
        try:
            if not change.applies(before.module):
                stages.append(_unchanged(before, change.name))
                continue
            if change.name in refused:
                raise PassError(f"pass {change.name!r} was undone: it failed its proof on another rank")
            module = apply_pass(change.name, before.module, change.run)
            after = Stage(name=change.name, module=module, input_names=before.input_names)
            if peaks:
                require_peak(change.name, before.peak_bytes, after.peak_bytes, may_add_bytes=change.may_add_bytes)
            if values is not None:
                values.require_equal(change.name, first.module, module)
            stages.append(after)
        except PassError as error:
            stages.append(replace(before, name=change.name, failure=str(error)))
    return stages


def _unchanged(before: Stage, name: str) -> Stage:
    after = replace(before, name=name, failure="")
    if "graph" in before.__dict__:  # priced already
        after.__dict__["graph"] = replace(before.graph, name=name)
    if "peak_bytes" in before.__dict__:
        after.__dict__["peak_bytes"] = before.peak_bytes
    return after


def _sharing_ranks(module: torch.fx.GraphModule) -> int:
    """The most ranks that a parameter is gathered from."""
    return max((node.args[1] for node in module.graph.nodes if node.target is collectives.ALL_GATHER), default=1)
