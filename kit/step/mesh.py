"""Which process groups a strategy's axes mean.

Kept apart from the strategies because it needs live process groups, which they do not.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from kit._torch.collectives import group_name
from kit.step.strategy import DDP, FSDP, HSDP, Strategy, StrategyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One mesh axis as a step needs it: the group's name in graphs, its size, this rank's place."""

    mesh: DeviceMesh
    group: str
    size: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The data-parallel axes of a step: parameters are sharded over `shard`, copied over `replicate`."""

    shard: Axis | None
    replicate: Axis | None

    def __iter__(self) -> Iterator[Axis]:
        return (axis for axis in (self.shard, self.replicate) if axis is not None)

    @property
    def size(self) -> int:
        """Ranks that see different batches."""
        return (self.shard.size if self.shard else 1) * (self.replicate.size if self.replicate else 1)

    @property
    def names(self) -> tuple[tuple[str, int], ...]:
        """Group name and size of each axis: what a graph holds of them."""
        return tuple((axis.group, axis.size) for axis in self)


def axes_of(strategy: Strategy, mesh: DeviceMesh | None, device: torch.device) -> Axes:
    """The axes of `mesh` that a strategy names, or one axis of all ranks when `mesh` is None.

    Raises `StrategyError` when no process group exists, or the mesh does not fit the strategy.
    """
    _require_group(device)
    if mesh is None:
        if isinstance(strategy, HSDP):
            raise StrategyError(
                "HSDP needs a mesh of two axes; make one with init_device_mesh(device, (replicas, shards), "
                f"mesh_dim_names=({strategy.replicate_axis!r}, {strategy.shard_axis!r})) and pass it as mesh="
            )
        mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("dp",))
    if isinstance(strategy, HSDP):
        return Axes(
            shard=_named(strategy.shard_axis, strategy, mesh), replicate=_named(strategy.replicate_axis, strategy, mesh)
        )
    only = _named(strategy.axis, strategy, mesh)
    match strategy:
        case DDP():
            return Axes(shard=None, replicate=only)
        case FSDP():
            return Axes(shard=only, replicate=None)


def _require_group(device: torch.device) -> None:
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


def _named(name: str | None, strategy: Strategy, mesh: DeviceMesh) -> Axis:
    names = mesh.mesh_dim_names or ()
    if name is None and mesh.ndim != 1:
        raise StrategyError(
            f"the mesh has {mesh.ndim} axes {names} and the strategy names none; "
            f"choose one, such as kit.{type(strategy).__name__}(axis={(names or ('dp',))[0]!r})"
        )
    if name is not None and name not in names and not (mesh.ndim == 1 and not names):
        listed = ", ".join(map(repr, names)) or "no names"
        raise StrategyError(f"axis {name!r} is not of the mesh; it has {listed}")
    if name is not None and mesh.ndim > 1:
        mesh = mesh[name]
    return Axis(mesh=mesh, group=group_name(mesh.get_group()), size=mesh.size(), index=mesh.get_local_rank())
