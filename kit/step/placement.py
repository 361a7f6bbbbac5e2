"""Where each parameter of a model lives: whole on every rank, or as a shard of dim 0.

A placement is made once for a model and kept with it, so that a step can be built again (another
micro-batch, another executor) and training goes on with the same values. Shards are kept padded to
equal rows: then every rank runs the same graph, and only the view that the user sees is uneven.
"""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard

from kit._torch import collectives
from kit.step.mesh import Axes, Axis
from kit.step.strategy import Strategy, StrategyError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slot:
    """One trainable parameter on this rank.

    `local`: what this rank keeps, `[padded rows / world size, ...]` when sharded, else the whole.
    `shape`: of the whole parameter. `public`: the parameter object that the module and the
    optimizer hold; it shares memory with `local`. `shard`: the axis it is sharded over, None when whole.
    """

    name: str
    shape: torch.Size
    local: torch.Tensor
    public: nn.Parameter
    shard: Axis | None

    @property
    def sharded(self) -> bool:
        """Whether ranks keep parts of it."""
        return self.shard is not None

    @property
    def padded_rows(self) -> int:
        """Rows of one rank's shard, padding included."""
        return int(self.local.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """The slots of a model in the order of `named_parameters`, tied weights once.

    `world`: the group of all ranks that it was made in; after a rejoin that group is another one and
    the shards must be bound to a new mesh.
    """

    strategy: type
    axes: Axes
    world: object
    slots: tuple[Slot, ...]


_placements: "weakref.WeakKeyDictionary[nn.Module, Placement]" = weakref.WeakKeyDictionary()


def place(model: nn.Module, optimizer: torch.optim.Optimizer, strategy: Strategy, axes: Axes) -> Placement:
    """Give each trainable parameter its place; rank 0's values become everybody's.

    With FSDP and HSDP the module's and the optimizer's parameters become DTensors, `Shard(0)` over the axis.
    Calling it again with the same strategy returns the placement that is there.
    Raises `StrategyError` when the model is already placed in another way.
    """
    known = _placements.get(model)
    if known is not None and _still_holds(known, model):
        if known.strategy is not type(strategy) or known.axes.names != axes.names:
            raise StrategyError(
                f"this model is already placed by {known.strategy.__name__} over {known.axes.size} ranks, "
                f"{type(strategy).__name__} over {axes.size} was asked for; build a fresh model for it"
            )
        _require_known(optimizer, known)
        return known if known.axes == axes and known.world is dist.group.WORLD else rebind(model, optimizer, axes)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            for axis in axes:
                dist.broadcast(tensor.detach(), group=axis.mesh.get_group(), group_src=0)
    slots = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            if axes.shard is None or parameter.dim() == 0:
                slots.append(_keep(name, parameter))
            else:
                slots.append(_shard(name, parameter, axes.shard))
    placement = Placement(strategy=type(strategy), axes=axes, world=dist.group.WORLD, slots=tuple(slots))
    _require_optimizer(optimizer, model)
    _publish(model, optimizer, placement)
    _placements[model] = placement
    return placement


def rebind(model: nn.Module, optimizer: torch.optim.Optimizer, axes: Axes) -> Placement:
    """Bind a placed model to the mesh of a new process group; values and optimizer state are kept."""
    known = _placements[model]
    slots = tuple(
        slot
        if axes.shard is None or not slot.sharded
        else replace(slot, shard=axes.shard, public=_public(slot.local, slot.public, slot.shape, axes.shard))
        for slot in known.slots
    )
    placement = replace(known, axes=axes, world=dist.group.WORLD, slots=slots)
    _publish(model, optimizer, placement)
    _placements[model] = placement
    return placement


def full_value(slot: Slot) -> torch.Tensor:
    """The whole parameter, gathered over its axis when it is sharded. A collective call."""
    if slot.shard is None:
        return slot.local.detach().clone()
    whole = collectives.all_gather(slot.local.contiguous(), slot.shard.group, slot.shard.size)
    return whole[: slot.shape[0]].clone()


def _keep(name: str, parameter: nn.Parameter) -> Slot:
    return Slot(name=name, shape=parameter.shape, local=parameter.detach(), public=parameter, shard=None)


def _shard(name: str, parameter: nn.Parameter, axis: Axis) -> Slot:
    rows = -(-parameter.shape[0] // axis.size)
    begin, end = (min(parameter.shape[0], rows * i) for i in (axis.index, axis.index + 1))
    local = parameter.new_zeros((rows, *parameter.shape[1:]), requires_grad=False)
    local[: end - begin] = parameter.detach()[begin:end]
    public = _public(local, parameter, parameter.shape, axis)
    return Slot(name=name, shape=parameter.shape, local=local, public=public, shard=axis)


def _public(local: torch.Tensor, parameter: nn.Parameter, shape: torch.Size, axis: Axis) -> nn.Parameter:
    """What the module shows of a shard: a DTensor over the rows that are no padding."""
    rows = max(0, min(shape[0] - axis.index * local.shape[0], local.shape[0]))
    whole = DTensor.from_local(
        local[:rows], axis.mesh, [Shard(0)], run_check=False, shape=shape, stride=parameter.stride()
    )
    return nn.Parameter(whole)


def _publish(model: nn.Module, optimizer: torch.optim.Optimizer, placement: Placement) -> None:
    """Put the placed parameters where the module and the optimizer hold the plain ones."""
    names = {slot.name: slot for slot in placement.slots}
    instead = {id(p): names[name].public for name, p in model.named_parameters() if name in names}
    for module, key, parameter in list(_owners(model)):
        if id(parameter) in instead:
            setattr(module, key, instead[id(parameter)])
    for group in optimizer.param_groups:
        group["params"] = [instead.get(id(p), p) for p in group["params"]]
    for old in [p for p in optimizer.state if id(p) in instead]:
        state = optimizer.state.pop(old)
        optimizer.state[instead[id(old)]] = state


def _owners(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    for module in model.modules():
        for key, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            yield module, key, parameter


def _still_holds(placement: Placement, model: nn.Module) -> bool:
    present = {id(parameter) for parameter in model.parameters()}
    return all(id(slot.public) in present for slot in placement.slots)


def _require_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    known = {id(parameter) for parameter in model.parameters()}
    strange = sum(id(p) not in known for group in optimizer.param_groups for p in group["params"])
    if strange:
        raise StrategyError(
            f"the optimizer holds {strange} parameters that are not of the model; make the optimizer from "
            "model.parameters() of this very model"
        )


def _require_known(optimizer: torch.optim.Optimizer, placement: Placement) -> None:
    known = {id(slot.public) for slot in placement.slots}
    strange = sum(p.requires_grad and id(p) not in known for g in optimizer.param_groups for p in g["params"])
    if strange:
        raise StrategyError(
            f"the optimizer holds {strange} parameters that the placed model no longer has; make it from "
            "model.parameters() after the model was placed, or use the optimizer of the first step"
        )
