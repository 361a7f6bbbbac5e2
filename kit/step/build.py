"""Build one graph of a step, from the model to what runs: trace, passes, agreement, executor."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from kit import progress
from kit._torch.executors import EXECUTORS
from kit.step.choose import fastest, lowered_alike, variants_of
from kit.step.cuda_graph import WARM_UP_STEPS, CudaGraphRun
from kit.step.eager_update import eager_update_of
from kit.step.guard import guard_of
from kit.step.lower import Lowered, draft
from kit.step.mesh import Axes
from kit.step.passes.choice import Choice
from kit.step.plain_state import accept_plain_state
from kit.step.recipe import Recipe
from kit.step.strategy import Strategy
from kit.step.tensor.check import require_same_values, whole_values
from kit.step.tensor.same import require_same_batch, share_random_state
from kit.step.timing import WARM_UP
from kit.step.trace import Loss
from kit.step.variants import Variant

CUDA_GRAPH = "cuda_graph"
CUDA_GRAPH_WARM_UP = WARM_UP_STEPS + 2  # the call after the last warm-up captures


def build_variant(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    window: list[Any],
    *,
    axes: Axes,
    strategy: Strategy,
    recipe: Recipe,
    executor: str,
    choice: Choice,
    measure: bool,
) -> Variant:
    """Place, trace and rewrite a step over `window`, and make what runs it. All ranks call this together.

    `measure`: time variants of the passes and keep the fastest; `choice` is then the first of them.
    """
    trials = None
    with progress.task("compile step", total=3) as work:
        require_same_batch(window, axes.tensor)
        whole = whole_values(model, loss, window[0], strategy=strategy, axes=axes, recipe=recipe)
        traced = draft(model, optimizer, loss, window, strategy=strategy, axes=axes, recipe=recipe, work=work)
        if measure:
            lowered, run, trials = fastest(
                traced, variants_of(strategy, choice), partial(_runner, executor), executor=executor,
                warm_up=CUDA_GRAPH_WARM_UP if executor == CUDA_GRAPH else WARM_UP,
            )  # fmt: skip
        else:
            lowered = lowered_alike(traced, choice)
            run = _runner(executor, lowered)
        require_same_values(whole, model, loss, lowered.inputs, layout=traced.layout, axes=axes, recipe=recipe)
        share_random_state(lowered.module, axes.tensor)
        work.advance(f"{len(lowered.plan.passes)} passes, ranks agree")
    accept_plain_state(model)
    eager = eager_update_of(optimizer, lowered.inputs, lowered.plan.unused)
    return Variant(
        guard=guard_of(model, optimizer if eager is None else None, lowered.inputs),
        lowered=lowered,
        held=tuple(lowered.inputs.held()),
        run=run,
        trials=trials,
        eager=eager,
    )


def require_known_executor(executor: str) -> None:
    """Raise `ValueError` for an executor that does not exist."""
    known = (*EXECUTORS, CUDA_GRAPH)
    if executor not in known:
        raise ValueError(f"executor {executor!r} is not known; expected one of {', '.join(map(repr, known))}")


def require_executor(executor: str, model: nn.Module) -> None:
    """Raise `ValueError` for an executor that does not exist, or cannot run this model."""
    require_known_executor(executor)
    if executor == CUDA_GRAPH and not any(p.is_cuda for p in model.parameters()):
        raise ValueError(
            f"executor {executor!r} replays a CUDA graph and the model is on the CPU; expected parameters on a GPU "
            "(kit.launch(n, backend='nccl', device='cuda')), or executor='inductor'"
        )


def _runner(executor: str, lowered: Lowered) -> Callable[..., Any]:
    if executor == CUDA_GRAPH:
        return CudaGraphRun(EXECUTORS["inductor"](lowered.module), held=len(lowered.inputs.held()))
    return EXECUTORS[executor](lowered.module)
