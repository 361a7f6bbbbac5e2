"""Plan a step for any number of ranks without hardware: fake tensors, a fake process group, one process.

The graph is the one that a rank would run, with exact shapes, counts and bytes; times are estimates.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from kit import progress
from kit._torch import trees
from kit._torch.fake import as_fake, fake_mode_of
from kit._torch.fake_group import fake_world
from kit.step.build import require_known_executor
from kit.step.estimate import estimate
from kit.step.hardware import Hardware, hardware_of
from kit.step.lower import draft
from kit.step.mesh import axes_of
from kit.step.passes.choice import Choice
from kit.step.precision import Precision
from kit.step.recipe import recipe_of
from kit.step.record import Plan
from kit.step.strategy import HSDP, TP, Strategy, StrategyError, strategy_of
from kit.step.trace import Loss

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


def plan(
    make_model: Callable[[], nn.Module],
    loss: Loss,
    batch: Any,
    *,
    world: int,
    strategy: str | Strategy = "fsdp",
    hardware: str | Hardware = "h200",
    make_optimizer: MakeOptimizer = torch.optim.AdamW,
    accumulation: int = 1,
    precision: str | Precision | None = None,
    clip_norm: float | None = None,
    checkpointing: str | Sequence[str] = (),
    executor: str = "eager",
    rank: int = 0,
) -> Plan:
    """The plan of rank `rank` of `world` for a step of the model that `make_model()` returns.

    Nothing is allocated: the model is made of fake tensors on the CPU, whatever its size (seven
    billion parameters took 11 CPU-seconds and 0.5 GB, measured). `batch`: one micro-batch of a rank.
    `plan.estimate` has the time, exposed share and memory on `hardware`. HSDP gets a mesh of
    (world / ranks a node, ranks a node), TP with a data strategy likewise unless it says `ranks`.
    The other options as in `kit.compile_step`; `executor` matters to the estimate only: "inductor" and "cuda_graph"
    fuse kernels and keep fewer values, "eager" runs node by node.
    Raises `RuntimeError` on a rank, `StrategyError`.
    """
    machine = hardware_of(hardware)
    require_known_executor(executor)
    chosen = _sized(strategy_of(strategy), world, machine)
    recipe = recipe_of(precision, clip_norm, checkpointing)
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} of a world of {world}; expected a rank from 0 to {world - 1}")
    with progress.task(f"plan {world} ranks", total=4) as work, fake_world(world, rank=rank):
        axes = axes_of(chosen, _mesh(chosen, world, machine), torch.device("cpu"))
        mode = fake_mode_of(())
        with mode:
            model = make_model()
            optimizer = make_optimizer(model.parameters())
            example = trees.mapped(partial(_faked, mode), batch)
            traced = draft(
                model, optimizer, loss, [example] * accumulation, strategy=chosen, axes=axes, recipe=recipe,
                work=work,
            )  # fmt: skip
            lowered = traced.lowered(Choice(bucket_mb=chosen.bucket_mb))
            work.advance(f"{len(lowered.plan.passes)} passes")
        guess = estimate(lowered.stages[-1].graph, machine, dict(axes.names), executor=executor)
        work.advance("estimated")
    return replace(lowered.plan, estimate=guess)


def _faked(mode: Any, leaf: Any) -> Any:
    return as_fake(mode, leaf) if isinstance(leaf, torch.Tensor) else leaf


def _sized(strategy: Strategy, world: int, hardware: Hardware) -> Strategy:
    """TP beside a data strategy splits modules over the ranks of one node, as long as it says nothing else."""
    if not isinstance(strategy, TP) or strategy.data is None or strategy.ranks is not None:
        return strategy
    return replace(strategy, ranks=min(world, hardware.ranks_per_node))


def _mesh(strategy: Strategy, world: int, hardware: Hardware) -> DeviceMesh | None:
    if not isinstance(strategy, HSDP):
        return None
    inside = hardware.ranks_per_node
    if world % inside or world == inside:
        raise StrategyError(
            f"HSDP on {world} ranks with {inside} a node has no two axes; expected a multiple of {inside}, at least "
            f"{2 * inside}"
        )
    return init_device_mesh(
        "cpu", (world // inside, inside), mesh_dim_names=(strategy.replicate_axis, strategy.shard_axis)
    )
