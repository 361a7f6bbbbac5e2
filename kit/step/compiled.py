"""The whole training step as one object: build it, call it with a batch, read its graph and plan."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from kit._torch.optimizers import note_step
from kit.graph.liveness import peak_bytes
from kit.graph.record import Graph
from kit.step.build import build_variant, require_executor
from kit.step.choose import MEASURE, choice_of
from kit.step.compiled_code import CompiledGraph, compiled_graph
from kit.step.cuda_graph import CudaGraphRun
from kit.step.eager_update import require_step_without_closure
from kit.step.estimate import estimate
from kit.step.hardware import Hardware, hardware_of
from kit.step.inputs import batch_tensors
from kit.step.life import Life, require_same_step
from kit.step.mesh import Axes, axes_of
from kit.step.pass_report import measured_report_of, report_of
from kit.step.passes.record import PassReport
from kit.step.placement import rebind
from kit.step.plain_state import full_model_state, full_optimizer_state
from kit.step.precision import Precision
from kit.step.recipe import recipe_of
from kit.step.record import Measured, Plan
from kit.step.restored import PARTS, load
from kit.step.saved import Stateful, Trained, save
from kit.step.state import show_state
from kit.step.strategy import Strategy, StrategyError, strategy_of
from kit.step.trace import Loss
from kit.step.undo import undone
from kit.step.variants import Variants, require_variants


class CompiledStep:
    """One static graph of a training step; made by `compile_step`.

    `step(batch)` runs forward, loss, backward, reduction and update on this rank's micro-batch and
    returns the loss over all ranks (a 0-dim tensor, the same on each). With accumulation the
    micro-batches follow each other: `step(first, second, ...)`.
    """

    def __init__(
        self,
        *,
        variants: Variants,
        axes: Axes,
        optimizer: torch.optim.Optimizer,
        strategy: Strategy,
        over_all_ranks: bool,
        executor: str,
    ) -> None:
        lowered = variants.first.lowered
        self._inputs = lowered.inputs
        self._axes = axes
        self._variants = variants
        self._optimizer = optimizer
        self._strategy = strategy
        self._over_all_ranks = over_all_ranks
        self._held = lowered.inputs.held()
        self._life = Life(is_cuda=self._held[0].is_cuda)
        self.grad_norm: torch.Tensor | None = None  # of the last step, before clipping
        self.executor = executor
        self.plan: Plan = lowered.plan
        self.stages = lowered.stages
        self.trials = variants.first.trials  # what passes="measure" timed

    def __call__(self, *window: Any) -> torch.Tensor:
        """Run one step on a window of micro-batches; returns the loss over all ranks.

        Raises `GuardError` for a call the graph was not traced for, and `InterruptedStepError` when ranks were
        stopped at different steps. An interrupt during a step is raised at its end.
        """
        if self._life.world is not dist.group.WORLD:
            self._rebind()
        variant = self._variants.for_call(window, self._axes)
        rates = variant.lowered.inputs.rates  # none where the optimizer takes its own step
        for rate, group in zip(rates, self._optimizer.param_groups[: len(rates)], strict=True):
            rate.fill_(float(group["lr"]))
        with torch.no_grad(), self._life.step():
            loss, *norm = variant.run(*variant.held, *batch_tensors(window))
            if variant.eager is not None:
                first = len(norm) - variant.eager.gradients
                variant.eager(self._inputs.slots, norm[first:])
                del norm[first:]
        note_step(self._optimizer)
        self.grad_norm = norm[0] if norm else None
        return loss  # type: ignore[no-any-return]

    @property
    def steps_done(self) -> int:
        """Steps that this rank has finished since it was compiled, on top of those of the run that was loaded."""
        return self._life.done

    def _rebind(self) -> None:
        """Go on in the group that is there now, from the same step. A collective call."""
        self._bind()
        require_same_step(self._life, self._axes)
        self._life.world = dist.group.WORLD

    def _bind(self) -> None:
        if not self._over_all_ranks:
            raise StrategyError(
                "this step was compiled over a mesh whose process group is gone; make the mesh again and call "
                "kit.compile_step(..., mesh=mesh) again: parameters and optimizer state are kept"
            )
        axes = axes_of(self._strategy, None, self._held[0].device)
        if axes.names != self._axes.names:
            raise StrategyError(
                f"the step's graph sends over (group, ranks) {self._axes.names}, the groups that are there now are "
                f"{axes.names}; call kit.compile_step again: parameters are kept"
            )
        self._axes = axes
        placement = rebind(self._variants.first.guard.model, self._optimizer, axes)
        self._inputs = replace(self._inputs, slots=placement.slots)
        for slot, state in zip(placement.slots, self._inputs.states, strict=True):
            show_state(self._optimizer, slot, state)
        if (eager := self._variants.first.eager) is not None:
            eager.rebind(placement.slots)
        for variant in self._variants.built:
            if isinstance(variant.run, CudaGraphRun):
                variant.run.forget()

    def __repr__(self) -> str:
        return f"CompiledStep({self.plan!r})"

    @property
    def graph(self) -> Graph:
        """The graph that runs, after all passes."""
        return replace(self.stages[-1].graph, name="training step")

    @property
    def module(self) -> torch.fx.GraphModule:
        """The FX graph that runs; read it, do not change it."""
        return self.stages[-1].module

    @property
    def runs(self) -> tuple[Callable[..., Any], ...]:
        """What the executor made of the graph; a module where it is run without torch.compile."""
        return (self._variants.first.run,)

    @property
    def compiled_graphs(self) -> tuple[CompiledGraph, ...]:
        """The graph of each variant with what Inductor made of it, once the step ran; for `kit.attribute`."""
        return tuple(compiled_graph(one.lowered.stages[-1].graph, one.run) for one in self._variants.built)

    @property
    def predicted_peak_bytes(self) -> int:
        """Most bytes alive at once on this rank, by the liveness of the graph run node by node."""
        return peak_bytes(self.graph)

    def plan_on(self, hardware: str | Hardware, measured: Measured | None = None) -> Plan:
        """The plan with estimated times on `hardware`, or with `measured` times where there are some."""
        guess = estimate(self.graph, hardware_of(hardware), dict(self._axes.names), measured, executor=self.executor)
        return replace(self.plan, estimate=guess)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Put parameters, state, buffers and random state back as they were when the block ends."""
        eager = self._variants.first.eager
        with undone(self._held), nullcontext() if eager is None else eager.undone():
            yield

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plan of each graph that was built, the example batch's first; more than one with `variants=`."""
        return tuple(variant.lowered.plan for variant in self._variants.built)

    def pass_report(self, *window: Any, hardware: str | Hardware = "h200") -> PassReport:
        """The graph after each pass: nodes, collectives, bytes, predicted peak and exposed communication.

        With a window of micro-batches each is also timed on all ranks, run node by node; then it is a collective
        call, and what it trains is undone. `hardware`: what exposed communication is estimated for.
        """
        machine = hardware_of(hardware)
        if not window:
            return report_of(self.stages, self._axes, machine)
        self._variants.first.guard.require(window)
        return measured_report_of(self.stages, self._axes, machine, inputs=self._inputs, window=window)

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """What the plain model's `state_dict()` would be: whole tensors; buffers are this rank's. A collective call."""
        return full_model_state(self._variants.first.guard.model, self._inputs.slots)

    def full_optimizer_state_dict(self) -> dict[str, Any]:
        """What the plain optimizer's `state_dict()` would be: whole tensors. A collective call."""
        return full_optimizer_state(self._optimizer)

    def save(self, path: str | Path, **also: Stateful) -> Path:
        """Save all that training needs to go on in the folder `path`; returns the path. A collective call.

        Parameters, buffers, optimizer state and settings, steps done, each rank's random state (CPU and its GPU) and
        buffers where they differ from rank 0's, and each rank's `also`: objects with `state_dict`, such as
        `scheduler=scheduler`. The format is torch.distributed.checkpoint's (pickles: load only what you trust); all
        ranks must see one file system. What was saved at `path` stays until the new one is whole, even if a rank dies.
        Steps over different parts of a larger mesh need a path each.
        Raises `SavedStepError`.
        """
        if self._life.world is not dist.group.WORLD:
            self._rebind()
        self._life.require_usable()
        return save(self._trained(), path, also)

    def load(self, path: str | Path, *, parts: Sequence[str] = PARTS, **also: Stateful) -> None:
        """Load what `save` wrote, by any number of ranks and under any strategy. A collective call.

        Also what a plain script wrote with `torch.distributed.checkpoint.save({"model": ..., "optimizer": ...})` from
        `get_state_dict`. `parts`: which of "model", "optimizer" (with steps done) and "random" to take. With another
        number of ranks random state is left as it is, and buffers and `also` of rank r are those of saved rank
        r modulo their number. Values are converted to the formats of this model, as torch does.
        Raises `SavedStepError` when the folder is absent, half-written, of another model or another optimizer; nothing
        is changed then.
        """
        if self._life.world is not dist.group.WORLD:
            self._bind()
        load(self._trained(), path, also, parts)
        self._life.world = dist.group.WORLD

    def _trained(self) -> Trained:
        return Trained(
            model=self._variants.first.guard.model,
            optimizer=self._optimizer,
            inputs=self._inputs,
            axes=self._axes,
            life=self._life,
        )


def compile_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    batch: Any,
    *,
    strategy: str | Strategy = "ddp",
    mesh: DeviceMesh | None = None,
    accumulation: int = 1,
    precision: str | Precision | None = None,
    clip_norm: float | None = None,
    checkpointing: str | Sequence[str] = (),
    executor: str = "eager",
    passes: str | Sequence[str] = "default",
    check_values: bool | None = None,
    variants: int = 1,
) -> CompiledStep:
    """Compile one training step of this rank into one static graph with its collectives inside.

    What is no tensor (numbers, the train mode, hyper-parameters but lr) is a constant of the graph; each rank keeps
    its own buffers (BatchNorm statistics are those of its batches), `full_state_dict` gives this rank's.

    `loss(model, batch)` returns the mean over the micro-batch's rows, or a pair (sum, count) that
    is divided exactly by the count over all ranks and micro-batches. `batch`: an example
    micro-batch, tensors `[micro-batch, ...]` in any nesting; a list of them is a window of
    micro-batches that may differ in rows (then `accumulation` stays 1).
    `precision`: "bf16" computes in bfloat16 and reduces in float32, parameters keep their format.
    `clip_norm`: largest norm of the whole gradient; `step.grad_norm` is the norm before.
    `checkpointing`: patterns of module paths (`"blocks.*"`) that are computed again in the backward.
    `executor`: "eager" runs the graph as it is, "aot_eager" through AOTAutograd, "inductor" compiles it at the
    first call, "cuda_graph" replays what Inductor made as one CUDA graph, from the fifth step on.
    `passes`: the rewrites by name and in order, or "measure": times a few variants on all ranks and keeps the
    fastest; `step.trials` is the table. Each pass is proved; one that fails is left out, `step.plan.undone` says why.
    `check_values`: compare results before and after each pass on real tensors; None does so for small steps.
    `variants`: up to how many graphs (at most 4) are built when batches of another form come; ranks then compare
    what they were called with at each step.

    SGD, Adam and AdamW are written out inside the graph, of any other optimizer its own `step()` is traced into it. One
    that does not trace takes its step after the graph; `plan.eager_optimizer`, `plan.eager_reason` say so and why.

    All ranks call this together. Rank 0's parameters are sent to all. Raises `StrategyError`,
    `OptimizerError`, `TraceError`, `DisagreementError` (all `ValueError` or `RuntimeError`).
    """
    chosen = strategy_of(strategy)
    window = _window(batch, accumulation)
    require_executor(executor, model)
    require_step_without_closure(optimizer)
    recipe = recipe_of(precision, clip_norm, checkpointing)
    limit = require_variants(variants)
    choice = choice_of(passes, chosen, check_values=check_values)
    axes = axes_of(chosen, mesh, next((p.device for p in model.parameters()), torch.device("cpu")))
    build = partial(
        build_variant, model, optimizer, loss,
        axes=axes, strategy=chosen, recipe=recipe, executor=executor, choice=choice, measure=passes == MEASURE,
    )  # fmt: skip
    return CompiledStep(
        variants=Variants(build(window), limit=limit, build=build), axes=axes, optimizer=optimizer, strategy=chosen,
        over_all_ranks=mesh is None, executor=executor,
    )  # fmt: skip


def _window(batch: Any, accumulation: int) -> list[Any]:
    if not isinstance(accumulation, int) or accumulation < 1:
        raise ValueError(f"accumulation is {accumulation!r}, expected a whole number of micro-batches, at least 1")
    if isinstance(batch, list):
        if accumulation != 1 or not batch:
            raise ValueError(
                f"batch is a list of {len(batch)} micro-batches and accumulation is {accumulation}; pass either a list "
                "of at least one micro-batch, or one example micro-batch with accumulation"
            )
        return list(batch)
    return [batch] * accumulation
