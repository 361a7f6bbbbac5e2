"""A module whose forward and backward are two static graphs with their collectives inside.

For training loops that keep their own loss and optimizer: it is called like the model it is made of,
`loss.backward()` reduces the gradients, an ordinary optimizer takes the step. A graph is traced at the
first call that needs it: one for training, one for calls without gradients.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from kit import progress
from kit._torch import trees
from kit._torch.executors import EXECUTORS
from kit.graph.from_fx import graph_of
from kit.graph.record import Graph
from kit.step import exchange
from kit.step.agreement import require_same_graph
from kit.step.compiled_code import CompiledGraph, compiled_graph
from kit.step.guard import Guard, GuardError, guard_of
from kit.step.inputs import Inputs, batch_tensors
from kit.step.lower import rewrite
from kit.step.mesh import Axes, axes_of
from kit.step.module_run import Joint, Run, joint_of
from kit.step.module_trace import Call, Place, Results, call_inputs, trace_module
from kit.step.optimizers_left_behind import LeftBehind
from kit.step.placement import Placement, place
from kit.step.plain_state import accept_plain_state, full_model_state
from kit.step.plan import plan_of
from kit.step.precision import Precision
from kit.step.recipe import Recipe, recipe_of
from kit.step.record import Plan
from kit.step.state import fit_own_state
from kit.step.strategy import TP, Strategy, StrategyError, strategy_of
from kit.step.tensor.check import require_same_outputs
from kit.step.tensor.same import SameGradients, require_same_batch, share_random_state
from kit.step.tensor.split import Layout, layout_of
from kit.step.trace import Traced

MOST_VARIANTS = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Variant:
    """Graphs for calls of one form. `wanted`: which of the batch's tensors want a gradient; None without gradients."""

    guard: Guard
    wanted: tuple[bool, ...] | None
    inputs: Inputs
    results: Results
    plan: Plan
    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule | None
    run: Joint | Run

    def __call__(self, call: Call) -> Any:
        batch = batch_tensors([call])
        made = self.run(batch) if isinstance(self.run, Joint) else self.run(*self.inputs.held(), *batch)
        return trees.mapped(lambda leaf: made[leaf.row] if isinstance(leaf, Place) else leaf, self.results.form)


class DistributedGraphModule(nn.Module):
    """A model as static forward and backward graphs; made by `kit.compile`, used like the model.

    Parameters and buffers are the model's own and keep their names; under FSDP, and in modules that TP splits, they
    show as DTensors, and so do their gradients. Each backward reduces: gradients of several calls add up as in plain
    torch. `load_state_dict` takes whole tensors too.
    """

    def __init__(
        self, model: nn.Module, *, strategy: Strategy, axes: Axes, layout: Layout, placement: Placement, recipe: Recipe,
        executor: str, variants: int, left_behind: LeftBehind, over_all_ranks: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        # The very dictionaries of the model: names, state_dict, parameters() and buffers() are the model's.
        self._parameters, self._buffers, self._modules = model._parameters, model._buffers, model._modules
        self._load_state_dict_pre_hooks = model._load_state_dict_pre_hooks
        self.training = model.training
        self._of = (model,)  # in a tuple, or it would be a submodule
        self._strategy, self._axes, self._layout, self._recipe = strategy, axes, layout, recipe
        self._placement = placement
        self._verifies = isinstance(strategy, TP) and strategy.verify
        self.executor, self._variants, self._left_behind = executor, variants, left_behind
        self._over_all_ranks = over_all_ranks
        self._built: list[_Variant] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns for these arguments, this rank's own.

        Raises `GuardError` for a call that the graphs were not traced for and `TraceError` when values decide
        what is run. The first call of each kind is a collective call: all ranks make it.
        """
        return self._variant((args, kwargs))((args, kwargs))

    def train(self, mode: bool = True) -> "DistributedGraphModule":
        """Set the mode of the model and all its parts; a mode that the graphs were not traced in is refused."""
        self.training = mode
        self._of[0].train(mode)
        return self

    @property
    def original(self) -> nn.Module:
        """The model it is made of."""
        return self._of[0]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "_of":  # not made yet
                raise
            return getattr(self._of[0], name)

    @property
    def forward_graph(self) -> Graph:
        """The forward that runs in training, after all passes."""
        return _record(self._training.forward, self._training, "forward")

    @property
    def runs(self) -> tuple[Callable[..., Any], ...]:
        """What the executor made of forward and backward of training; modules where they run without torch.compile."""
        run = self._training.run
        return (run.forward, run.backward) if isinstance(run, Joint) else (run,)

    @property
    def compiled_graphs(self) -> tuple[CompiledGraph, ...]:
        """Forward and backward of training with what Inductor made of them, once they ran; for `kit.attribute`."""
        joint = self._training.run
        if not isinstance(joint, Joint):
            return ()
        pairs = ((self.forward_graph, joint.forward), (self.backward_graph, joint.backward))
        return tuple(compiled_graph(graph, run) for graph, run in pairs)

    @property
    def backward_graph(self) -> Graph:
        """The backward that runs, after all passes."""
        backward = self._training.backward
        if backward is None:
            raise ValueError("this graph has no backward: it was traced without gradients")
        return _record(backward, self._training, "backward")

    @property
    def modules_run(self) -> tuple[torch.fx.GraphModule, ...]:
        """The FX graphs that run in training, forward and backward; read them, do not change them."""
        backward = self._training.backward
        return (self._training.forward, *(() if backward is None else (backward,)))

    @property
    def plan(self) -> Plan:
        """What forward and backward send, in order."""
        return self._training.plan

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """What the plain model's `state_dict()` would be: whole tensors; buffers are this rank's. A collective call."""
        return full_model_state(self._of[0], self._placement.slots)

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale all gradients so that their norm is at most `max_norm`; returns the norm before. A collective call.

        As `torch.nn.utils.clip_grad_norm_`, which takes no mixture of DTensors and tensors, such as TP leaves.
        """
        return exchange.clip_in_place(self._placement.slots, self._axes, max_norm)

    def __repr__(self) -> str:
        name = type(self._of[0]).__name__
        if not any(variant.backward is not None for variant in self._built):
            return f"DistributedGraphModule({name}: {self._strategy}, traced at its first call)"
        sizes = " and ".join(str(len(module.graph.nodes)) for module in self.modules_run)
        return (
            f"DistributedGraphModule({name}: {self._strategy} on {self._axes.ranks} ranks, forward and backward of "
            f"{sizes} nodes, {len(self.plan.sends)} collectives)"
        )

    def _repr_html_(self) -> str:
        from kit.step.table import table

        return table(self.plan)._repr_html_()

    def _apply(self, fn: Any, recurse: bool = True) -> "DistributedGraphModule":
        raise StrategyError(
            "the graphs hold the memory and the number format of the parameters; move or convert the model before "
            "kit.compile, or use precision="
        )

    @property
    def _training(self) -> _Variant:
        for variant in self._built:
            if variant.backward is not None:
                return variant
        raise ValueError(
            "no training graph is there yet; call the module once with gradients, or give kit.compile an example batch"
        )

    def _variant(self, call: Call) -> _Variant:
        """The graphs for a call: known ones, or new ones where there is room for them."""
        wanted = _wishes(call) if torch.is_grad_enabled() and self._has_gradients(call) else None
        self._require_world()
        if wanted is not None:
            self._left_behind.refuse_optimizers(self._of[0])
        known = [variant for variant in self._built if (variant.wanted is None) is (wanted is None)]
        refusal: GuardError | None = None
        for variant in known:
            try:
                variant.guard.require([call])
                _require_wishes(variant.wanted, wanted)
                return variant
            except GuardError as error:
                refusal = refusal or error
        if refusal is not None and len(known) >= self._variants:
            raise refusal
        variant = self._build(call, wanted)
        self._built.append(variant)
        return variant

    def _has_gradients(self, call: Call) -> bool:
        return bool(self._placement.slots) or any(_wishes(call))

    def _require_world(self) -> None:
        if self._placement.world is dist.group.WORLD:
            return
        in_parts = any(slot.in_parts for slot in self._placement.slots)
        if in_parts or not self._over_all_ranks:
            raise StrategyError(
                "the process group that this module was compiled in is gone; call kit.compile(model, strategy=..., "
                "optimizer=optimizer) again: parameters and the optimizer's state are kept"
            )
        axes = axes_of(self._strategy, None, self._device)
        if axes.names != self._axes.names:
            self._built.clear()  # traced again for the groups that are there now
        self._axes, self._layout = axes, layout_of(self._of[0], self._strategy, axes.tensor)
        self._placement = place(self._of[0], None, self._strategy, axes, self._layout)

    @property
    def _device(self) -> torch.device:
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    def _build(self, call: Call, wanted: tuple[bool, ...] | None) -> _Variant:
        model, axes = self._of[0], self._axes
        with progress.task("compile module", total=3) as work:
            inputs = call_inputs(model, self._placement, call)
            require_same_batch(inputs.window, axes.tensor)
            traced, results = trace_module(model, inputs, axes, self._recipe, wanted, self._layout)
            work.advance(f"traced {len(traced.graph.nodes)} nodes")
            unused = () if wanted is None else tuple(
                slot.name for row, slot in enumerate(inputs.slots) if row not in results.reached
            )  # fmt: skip
            stages = rewrite(Traced(module=traced, unused=unused), inputs, self._strategy)
            work.advance(f"{sum(not stage.failure for stage in stages) - 1} passes")
            require_same_graph(stages[-1].module, axes)
            if self._verifies:  # once
                require_same_outputs(model, inputs, layout=self._layout, axes=axes, recipe=self._recipe)
                self._verifies = False
            share_random_state(stages[-1].module, axes.tensor)
            work.advance("ranks agree")
        plan = plan_of(
            stages[-1].module, inputs, strategy=repr(self._strategy), axes=axes,
            passes=[stage.name for stage in stages[1:] if not stage.failure], unused=unused,
        )  # fmt: skip
        plan = replace(plan, undone=tuple(stage.failure for stage in stages if stage.failure))
        guard = guard_of(model, None, inputs, what="module")
        verifies = isinstance(self._strategy, TP) and self._strategy.verify
        same = SameGradients(axes.tensor if verifies else None, self._recipe.precision)
        joint = joint_of(stages[-1].module, inputs, results, self.executor, same) if wanted is not None else None
        return _Variant(
            guard=guard, wanted=wanted, inputs=inputs, results=results, plan=plan,
            forward=joint.halves.forward if joint else stages[-1].module,
            backward=joint.halves.backward if joint else None,
            run=joint or EXECUTORS[self.executor](stages[-1].module),
        )  # fmt: skip


def compile_module(
    model: nn.Module,
    call: Call | None = None,
    *,
    strategy: str | Strategy = "ddp",
    mesh: DeviceMesh | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    precision: str | Precision | None = None,
    checkpointing: str | Sequence[str] = (),
    executor: str = "eager",
    variants: int = 1,
) -> DistributedGraphModule:
    """The model as a module of static graphs, placed by the strategy; traced for `call` or at the first call.

    All ranks call this together; rank 0's parameters are sent to all. Under FSDP and HSDP the parameters,
    and under TP those that it splits, become DTensors: make the optimizer from the new module's parameters, or pass the
    one there is. Ranks that share a model split by TP must compute the same loss of the same batch.
    Each rank keeps its own buffers. Raises `StrategyError`, `TraceError`, `DisagreementError`.
    """
    chosen = strategy_of(strategy)
    if executor not in EXECUTORS:
        raise ValueError(f"executor {executor!r} is not known; expected one of {', '.join(map(repr, EXECUTORS))}")
    if not 1 <= variants <= MOST_VARIANTS:
        raise ValueError(f"variants is {variants}, expected 1 to {MOST_VARIANTS} forms of call to keep graphs for")
    recipe = recipe_of(precision, None, checkpointing)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    axes = axes_of(chosen, mesh, device)
    left_behind = LeftBehind.before(model)
    layout = layout_of(model, chosen, axes.tensor)
    placement = place(model, optimizer, chosen, axes, layout)
    accept_plain_state(model)
    if optimizer is not None:
        for slot in placement.slots:
            fit_own_state(optimizer, slot)
    module = DistributedGraphModule(
        model, strategy=chosen, axes=axes, layout=layout, placement=placement, recipe=recipe, executor=executor,
        variants=variants, left_behind=left_behind, over_all_ranks=mesh is None,
    )  # fmt: skip
    if call is not None:
        with torch.enable_grad():
            module._variant(call)
    return module


def _record(module: torch.fx.GraphModule, variant: _Variant, name: str) -> Graph:
    every = [node.name for node in variant.forward.graph.nodes if node.op == "placeholder"]
    names = dict(zip(every, variant.inputs.names(), strict=True))
    own = {node.name for node in module.graph.nodes if node.op == "placeholder"}
    return graph_of(module, name=name, parameters={node: of for node, of in names.items() if node in own})


def _wishes(call: Call) -> tuple[bool, ...]:
    return tuple(leaf.requires_grad for leaf in trees.leaves([call]) if isinstance(leaf, torch.Tensor))


def _require_wishes(traced: tuple[bool, ...] | None, seen: tuple[bool, ...] | None) -> None:
    if traced == seen:
        return
    number = next(row for row, (a, b) in enumerate(zip(traced or (), seen or (), strict=True)) if a is not b)
    raise GuardError(
        f"requires_grad of tensor {number} of the batch went from {(traced or ())[number]} to {(seen or ())[number]}; "
        "set it as it was, or compile with variants=2"
    )
