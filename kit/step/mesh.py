"""Which process groups a strategy's axes mean.

Kept apart from the strategies because it needs live process groups, which they do not.
"""

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from kit._torch.collectives import group_name
from kit.step.strategy import DDP, FSDP, HSDP, TP, Strategy, StrategyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One mesh axis as a step needs it: the group's name in graphs, its size, this rank's place."""

    mesh: DeviceMesh
    group: str
    size: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The axes of a step: data parallel over `shard` (parameters are shards) and `replicate` (copies); parts of modules
    over `tensor`.

    `grid`: the mesh of `shard` and `tensor` together, where there are both.
    """

    shard: Axis | None
    replicate: Axis | None
    tensor: Axis | None = None
    grid: DeviceMesh | None = None

    def __iter__(self) -> Iterator[Axis]:
        return (axis for axis in (self.shard, self.replicate, self.tensor) if axis is not None)

    @property
    def data(self) -> tuple[Axis, ...]:
        """The axes whose ranks see different batches."""
        return tuple(axis for axis in (self.shard, self.replicate) if axis is not None)

    @property
    def size(self) -> int:
        """Ranks that see different batches."""
        return math.prod(axis.size for axis in self.data)

    @property
    def ranks(self) -> int:
        """All ranks of the step."""
        return math.prod(axis.size for axis in self)

    @property
    def names(self) -> tuple[tuple[str, int], ...]:
        """Group name and size of each axis: what a graph holds of them."""
        return tuple((axis.group, axis.size) for axis in self)

    @property
    def places(self) -> tuple[tuple[int, int] | None, ...]:
        """Size of each axis and this rank's place on it: what stays the same when groups are made again."""
        axes = (self.shard, self.replicate, self.tensor)
        return tuple(None if axis is None else (axis.size, axis.index) for axis in axes)


def axes_of(strategy: Strategy, mesh: DeviceMesh | None, device: torch.device) -> Axes:
    """The axes of `mesh` that a strategy names, or one axis of all ranks when `mesh` is None.

    Raises `StrategyError` when no process group exists, or the mesh does not fit the strategy.
    """
    _require_group(device)
    if isinstance(strategy, TP):
        return _tensor_axes(strategy, mesh or _mesh_for(strategy, device))
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


def _mesh_for(strategy: TP, device: torch.device) -> DeviceMesh:
    """The mesh of all ranks that `TP(ranks=...)` describes."""
    world = dist.get_world_size()
    inside = world if strategy.ranks is None and strategy.data is None else strategy.ranks
    data_axis = "dp" if strategy.data is None else strategy.data.axis or "dp"
    if inside is None:
        raise StrategyError(
            f"TP with data={strategy.data!r} needs two axes: say TP(ranks=...), how many ranks share a split model, or "
            "pass mesh=init_device_mesh(device, (data ranks, tensor ranks), "
            f"mesh_dim_names=({data_axis!r}, {strategy.axis!r}))"
        )
    if world % inside or (strategy.data is None and inside != world):
        raise StrategyError(
            f"TP(ranks={inside}) on {world} ranks: expected a number that divides {world}, and data=kit.DDP() or "
            "kit.FSDP() where it is less"
        )
    if strategy.data is None:
        return init_device_mesh(device.type, (world,), mesh_dim_names=(strategy.axis,))
    return _two_axes(device.type, (world // inside, inside), (data_axis, strategy.axis))


# By process group: a model is placed over groups, and a step that is compiled again must find the same ones.
_made: "weakref.WeakKeyDictionary[Any, dict[Any, DeviceMesh]]" = weakref.WeakKeyDictionary()


def _two_axes(device_type: str, shape: tuple[int, int], names: tuple[str, str]) -> DeviceMesh:
    """The kit's own mesh of this form in the present process group."""
    made = _made.setdefault(dist.group.WORLD, {})
    key = device_type, shape, names
    if key not in made:
        made[key] = init_device_mesh(device_type, shape, mesh_dim_names=names)
    return made[key]


def _tensor_axes(strategy: TP, mesh: DeviceMesh) -> Axes:
    names = mesh.mesh_dim_names or ()
    tensor = _named(strategy.axis, strategy, mesh)
    others = [name for name in names if name != strategy.axis]
    if strategy.data is None:
        if mesh.ndim != 1:
            raise StrategyError(
                f"the mesh has {mesh.ndim} axes {names} and TP uses {strategy.axis!r} only; say what the other does, "
                f"such as kit.TP(..., data=kit.FSDP(axis={(others or ['dp'])[0]!r}))"
            )
        return Axes(shard=None, replicate=None, tensor=tensor)
    if mesh.ndim != 2:
        raise StrategyError(f"TP with {type(strategy.data).__name__} needs a mesh of two axes, this one has {names}")
    data = _named(strategy.data.axis or others[0], strategy.data, mesh)
    if isinstance(strategy.data, FSDP):
        return Axes(shard=data, replicate=None, tensor=tensor, grid=mesh)
    return Axes(shard=None, replicate=data, tensor=tensor)


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
