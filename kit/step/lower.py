"""From a model to the graph of its step: place, trace, rewrite. Nothing runs yet.

Apart from compiling, because planning does the same for ranks that do not exist.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from kit import progress
from kit.graph.from_fx import graph_of
from kit.graph.record import Graph
from kit.step.inputs import Inputs, inputs_of
from kit.step.mesh import Axes
from kit.step.passes.bucket import bucket_gathers, bucket_reductions
from kit.step.passes.hoist import hoist_preparations
from kit.step.passes.proof import Pass, apply_pass
from kit.step.passes.reshard import reshard_after_forward
from kit.step.placement import place
from kit.step.plan import plan_of
from kit.step.recipe import Recipe
from kit.step.record import Plan
from kit.step.strategy import DDP, Strategy
from kit.step.trace import Loss, Traced, trace_step


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """The step's graph after one pass; "traced" before any."""

    name: str
    module: torch.fx.GraphModule
    input_names: tuple[str, ...]

    @cached_property
    def graph(self) -> Graph:
        """The graph as a record, priced when it is first asked for."""
        placeholders = [node.name for node in self.module.graph.nodes if node.op == "placeholder"]
        return graph_of(self.module, name=self.name, parameters=dict(zip(placeholders, self.input_names, strict=True)))


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


def lower(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    window: list[Any],
    *,
    strategy: Strategy,
    axes: Axes,
    recipe: Recipe,
    work: progress.Task,
) -> Lowered:
    """Place the model, trace its step over `window` and apply the passes of the strategy."""
    inputs = inputs_of(model, optimizer, place(model, optimizer, strategy, axes), window)
    work.advance("parameters placed")
    traced = trace_step(model, loss, inputs, axes, recipe)
    work.advance(f"traced {len(traced.module.graph.nodes)} nodes")
    stages = _rewrite(traced, inputs, strategy)
    work.advance(f"{len(stages) - 1} passes")
    plan = plan_of(
        stages[-1].module,
        inputs,
        strategy=repr(strategy),
        world_size=axes.size,
        passes=[stage.name for stage in stages[1:]],
        unused=traced.unused,
    )
    return Lowered(inputs=inputs, stages=tuple(stages), plan=plan)


def _rewrite(traced: Traced, inputs: Inputs, strategy: Strategy) -> list[Stage]:
    """Apply the passes of a strategy; the graph after each is kept as a record."""
    limit = None if strategy.bucket_mb is None else strategy.bucket_mb * 1e6
    changes: list[tuple[str, Pass]] = [
        ("hoist preparations", hoist_preparations),
        ("bucket reductions", lambda gm: bucket_reductions(gm, limit)),
    ]
    if not isinstance(strategy, DDP):
        changes.append(("bucket gathers", lambda gm: bucket_gathers(gm, limit)))
        if strategy.reshard_after_forward:
            changes.append(("reshard after forward", reshard_after_forward))
    names = tuple(inputs.names())
    module = apply_pass("remove dead code", traced.module, lambda gm: None)
    stages = [Stage(name="traced", module=traced.module, input_names=names)]
    stages.append(Stage(name="remove dead code", module=module, input_names=names))
    for name, change in changes:
        module = apply_pass(name, module, change)
        stages.append(Stage(name=name, module=module, input_names=names))
    return stages
