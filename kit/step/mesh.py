"""Which process group a strategy's axis means.

Kept apart from the strategies because it needs a live process group, which they do not.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from kit._torch.collectives import group_name
from kit.step.strategy import Strategy, StrategyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One mesh axis as a step needs it: the group's name in graphs, its size, this rank's place."""

    mesh: DeviceMesh
    group: str
    size: int
    index: int


def axis_of(strategy: Strategy, mesh: DeviceMesh | None, device: torch.device) -> Axis:
    """The data-parallel axis of `mesh`, or of all ranks when `mesh` is None.

    Raises `StrategyError` when no process group exists, or the axis name is not of the mesh.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise StrategyError(
            "no process group exists in this process; a step runs on ranks: use kit.launch(2) and a "
            "%%ranks cell, or torchrun with torch.distributed.init_process_group()"
        )
    if device.type == "cuda" and "nccl" not in str(dist.get_backend()):
        raise StrategyError(
            f"the model is on {device} and the group's backend is {dist.get_backend()}, whose functional collectives "
            "crash on GPU tensors (torch 2.11); start the ranks with kit.launch(n, backend='nccl', device='cuda'), one "
            "GPU a rank, or put the model on the CPU"
        )
    if mesh is None:
        mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("dp",))
    names = mesh.mesh_dim_names or ()
    if strategy.axis is None and mesh.ndim != 1:
        raise StrategyError(
            f"the mesh has {mesh.ndim} axes {names} and the strategy names none; "
            f"choose one, such as kit.{type(strategy).__name__}(axis={(names or ('dp',))[0]!r})"
        )
    if strategy.axis is not None and strategy.axis not in names and not (mesh.ndim == 1 and not names):
        raise StrategyError(
            f"axis {strategy.axis!r} is not of the mesh; it has {', '.join(map(repr, names)) or 'no names'}"
        )
    if strategy.axis is not None and mesh.ndim > 1:
        mesh = mesh[strategy.axis]
    return Axis(mesh=mesh, group=group_name(mesh.get_group()), size=mesh.size(), index=mesh.get_local_rank())
