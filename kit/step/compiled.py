"""The whole training step as one object: build it, call it with a batch, read its graph and plan."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from kit import progress
from kit._torch.executors import EXECUTORS
from kit._torch.optimizers import note_step
from kit.graph.liveness import peak_bytes
from kit.graph.record import Graph
from kit.step.agreement import require_same_graph
from kit.step.cuda_graph import CudaGraphRun
from kit.step.guard import Guard, guard_of
from kit.step.inputs import Inputs, batch_tensors
from kit.step.life import Life, require_same_step
from kit.step.lower import Lowered, lower
from kit.step.mesh import Axes, axes_of
from kit.step.placement import full_value, rebind
from kit.step.precision import Precision
from kit.step.recipe import Recipe, recipe_of
from kit.step.record import Plan
from kit.step.state import show_state
from kit.step.strategy import Strategy, StrategyError, strategy_of
from kit.step.trace import Loss

CUDA_GRAPH = "cuda_graph"


class CompiledStep:
    """One static graph of a training step; made by `compile_step`.

    `step(batch)` runs forward, loss, backward, reduction and update on this rank's micro-batch and
    returns the loss over all ranks (a 0-dim tensor, the same on each). With accumulation the
    micro-batches follow each other: `step(first, second, ...)`.
    """

    def __init__(
        self,
        *,
        lowered: Lowered,
        axes: Axes,
        guard: Guard,
        run: Callable[..., Any],
        optimizer: torch.optim.Optimizer,
        strategy: Strategy,
        over_all_ranks: bool,
    ) -> None:
        self._inputs = lowered.inputs
        self._axes = axes
        self._guard = guard
        self._run = run
        self._optimizer = optimizer
        self._strategy = strategy
        self._over_all_ranks = over_all_ranks
        self._held = lowered.inputs.held()
        self._life = Life(is_cuda=self._held[0].is_cuda)
        self.grad_norm: torch.Tensor | None = None  # of the last step, before clipping
        self.plan: Plan = lowered.plan
        self.stages = lowered.stages

    def __call__(self, *window: Any) -> torch.Tensor:
        """Run one step on a window of micro-batches; returns the loss over all ranks.

        Raises `GuardError` for a call the graph was not traced for, and `InterruptedStepError` when ranks were
        stopped at different steps. An interrupt during a step is raised at its end.
        """
        self._guard.require(window)
        if self._life.world is not dist.group.WORLD:
            self._rebind()
        for rate, group in zip(self._inputs.rates, self._optimizer.param_groups, strict=True):
            rate.fill_(float(group["lr"]))
        with torch.no_grad(), self._life.step():
            loss, *norm = self._run(*self._held, *batch_tensors(window))
        note_step(self._optimizer)
        self.grad_norm = norm[0] if norm else None
        return loss  # type: ignore[no-any-return]

    @property
    def steps_done(self) -> int:
        """Steps that this rank has finished since it was compiled."""
        return self._life.done

    def _rebind(self) -> None:
        """Go on in the group that is there now. A collective call."""
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
        placement = rebind(self._guard.model, self._optimizer, axes)
        self._inputs = replace(self._inputs, slots=placement.slots)
        for slot, state in zip(placement.slots, self._inputs.states, strict=True):
            show_state(self._optimizer, slot, state)
        require_same_step(self._life, axes)
        if isinstance(self._run, CudaGraphRun):
            self._run.forget()
        self._life.world = dist.group.WORLD

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
    def predicted_peak_bytes(self) -> int:
        """Most bytes alive at once on this rank, by the liveness of the graph run node by node."""
        return peak_bytes(self.graph)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Put parameters, state, buffers and random state back as they were when the block ends."""
        kept = [tensor.clone() for tensor in self._held]
        with torch.random.fork_rng(devices=[self._held[0].device] if self._held[0].is_cuda else []):
            try:
                yield
            finally:
                for tensor, before in zip(self._held, kept, strict=True):
                    tensor.copy_(before)

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """The model's parameters and buffers, whole, as the plain model names them. A collective call."""
        whole = {slot.name: full_value(slot) for slot in self._inputs.slots}
        return whole | {name: tensor.detach().clone() for name, tensor in self._inputs.others.items()}


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
    `executor`: "eager" runs the graph as it is, "aot_eager" through torch.compile, "inductor" compiles it at the
    first call, "cuda_graph" replays what Inductor made as one CUDA graph, from the fifth step on.

    All ranks call this together. Rank 0's parameters are sent to all. Raises `StrategyError`,
    `OptimizerError`, `TraceError`, `DisagreementError` (all `ValueError` or `RuntimeError`).
    """
    chosen = strategy_of(strategy)
    window = _window(batch, accumulation)
    _require_executor(executor, model)
    recipe = recipe_of(precision, clip_norm, checkpointing)
    return _build(model, optimizer, loss, window, strategy=chosen, mesh=mesh, recipe=recipe, executor=executor)


def _build(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    window: list[Any],
    *,
    strategy: Strategy,
    mesh: DeviceMesh | None,
    recipe: Recipe,
    executor: str,
) -> CompiledStep:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with progress.task("compile step", total=4) as work:
        axes = axes_of(strategy, mesh, device)
        lowered = lower(model, optimizer, loss, window, strategy=strategy, axes=axes, recipe=recipe, work=work)
        require_same_graph(lowered.module, axes)
        work.advance("ranks agree")
    return CompiledStep(
        lowered=lowered,
        axes=axes,
        guard=guard_of(model, optimizer, lowered.inputs),
        run=_runner(executor, lowered.module, lowered.inputs),
        optimizer=optimizer,
        strategy=strategy,
        over_all_ranks=mesh is None,
    )


def _require_executor(executor: str, model: nn.Module) -> None:
    known = (*EXECUTORS, CUDA_GRAPH)
    if executor not in known:
        raise ValueError(f"executor {executor!r} is not known; expected one of {', '.join(map(repr, known))}")
    if executor == CUDA_GRAPH and not any(p.is_cuda for p in model.parameters()):
        raise ValueError(
            f"executor {executor!r} replays a CUDA graph and the model is on the CPU; expected parameters on a GPU "
            "(kit.launch(n, backend='nccl', device='cuda')), or executor='inductor'"
        )


def _runner(executor: str, module: torch.fx.GraphModule, inputs: Inputs) -> Callable[..., Any]:
    if executor == CUDA_GRAPH:
        return CudaGraphRun(EXECUTORS["inductor"](module), held=len(inputs.held()))
    return EXECUTORS[executor](module)


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
