"""Where each parameter of a model lives: whole on every rank, as a shard of dim 0, or as a part of a split module.

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

from kit._torch import collectives
from kit.step.mesh import Axes, Axis
from kit.step.shown import Form, form_of, shown
from kit.step.strategy import Strategy, StrategyError, data_of
from kit.step.tensor.split import Layout, Split, joined, part_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slot:
    """One trainable parameter on this rank.

    `local`: what this rank keeps, `[padded rows / world size, ...]` when sharded, else all of `form.part`.
    `public`: the parameter object that the module and the optimizer hold; it shares memory with `local`.
    `summed`: ranks of the tensor axis each have a summand of its gradient.
    """

    name: str
    local: torch.Tensor
    public: nn.Parameter
    form: Form
    summed: bool = False

    @property
    def shape(self) -> torch.Size:
        """Of the whole parameter."""
        return self.form.shape

    @property
    def shard(self) -> Axis | None:
        """The axis it is sharded over, None when this rank keeps all it computes with."""
        return self.form.shard

    @property
    def split(self) -> Split | None:
        """How it is cut over the tensor axis, None when it is whole there."""
        return self.form.split

    @property
    def turned(self) -> bool:
        """Whether `local` holds rows of the transpose."""
        return self.form.turned

    @property
    def rows(self) -> int:
        """Rows of all shards together, padding left out."""
        return self.form.rows

    @property
    def sharded(self) -> bool:
        """Whether ranks keep parts of it."""
        return self.shard is not None

    @property
    def in_parts(self) -> bool:
        """Whether no rank keeps all of it, so that the module shows a DTensor."""
        return self.shard is not None or self.split is not None

    @property
    def padded_rows(self) -> int:
        """Rows of one rank's shard, padding included."""
        return int(self.local.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """The slots of a model in the order of `named_parameters`, tied weights once.

    `kind`: of its strategy, in words. `world`: the group of all ranks that it was made in; after a rejoin that group
    is another one and the shards must be bound to a new mesh.
    """

    kind: str
    axes: Axes
    world: object
    slots: tuple[Slot, ...]


_placements: "weakref.WeakKeyDictionary[nn.Module, Placement]" = weakref.WeakKeyDictionary()


def place(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    strategy: Strategy,
    axes: Axes,
    layout: Layout | None = None,
) -> Placement:
    """Give each trainable parameter its place; rank 0's values become everybody's.

    Shards (FSDP, HSDP) and parts of split modules (`layout`, TP) become DTensors in the module and the optimizer.
    Calling it again with the same strategy returns the placement that is there.
    Raises `StrategyError` when the model is already placed in another way.
    """
    layout = layout or Layout()
    kind = f"{type(strategy).__name__}, {type(data_of(strategy)).__name__}"
    known = _placements.get(model)
    if known is not None and _still_holds(known, model):
        _require_same(known, kind, axes, layout)
        if optimizer is not None:
            _require_known(optimizer, known)
        known = replace(known, slots=tuple(replace(s, summed=s.name in layout.summed) for s in known.slots))
        _placements[model] = known
        return known if known.axes == axes and known.world is dist.group.WORLD else rebind(model, optimizer, axes)
    send_from_first(model, axes)
    slots = tuple(
        _placed(name, parameter, axes, layout)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    )
    placement = Placement(kind=kind, axes=axes, world=dist.group.WORLD, slots=slots)
    if optimizer is not None:
        _require_optimizer(optimizer, model)
    _publish(model, optimizer, placement)
    _placements[model] = placement
    return placement


def send_from_first(model: nn.Module, axes: Axes) -> None:
    """Rank 0's parameters and buffers become everybody's. A collective call."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            for axis in axes:
                dist.broadcast(tensor.detach(), group=axis.mesh.get_group(), group_src=0)


def is_placed(model: nn.Module) -> bool:
    """Whether the model's parameters have their places, so that no rank holds it whole."""
    known = _placements.get(model)
    return known is not None and _still_holds(known, model)


def slots_of(model: nn.Module) -> tuple[Slot, ...]:
    """The slots of a placed model, none of another."""
    known = _placements.get(model)
    return () if known is None else known.slots


def rebind(model: nn.Module, optimizer: torch.optim.Optimizer | None, axes: Axes) -> Placement:
    """Bind a placed model to the mesh of a new process group; values and optimizer state are kept."""
    known = _placements[model]
    slots = []
    for slot in known.slots:
        split = replace(slot.split, axis=axes.tensor) if slot.split and axes.tensor else None
        form = replace(slot.form, shard=slot.shard and axes.shard, split=split, grid=axes.grid)
        slots.append(replace(slot, form=form, public=_public(form, slot.local, slot.public)))
    placement = replace(known, axes=axes, world=dist.group.WORLD, slots=tuple(slots))
    _publish(model, optimizer, placement)
    _placements[model] = placement
    return placement


def full_value(slot: Slot) -> torch.Tensor:
    """The whole parameter, gathered over its axes when it is sharded or split. A collective call."""
    value = slot.local.detach()
    if slot.shard is not None:
        value = collectives.all_gather(value.contiguous(), slot.shard.group, slot.shard.size)[: slot.rows]
        value = value.t() if slot.turned else value
    if slot.split is not None:
        axis = slot.split.axis
        flat = collectives.all_gather(value.contiguous().flatten(), axis.group, axis.size)
        value = joined(flat.view(axis.size, *value.shape).unbind(), slot.split)
    return value.clone()


def own_rows(slot: Slot, whole: torch.Tensor) -> torch.Tensor:
    """What this rank keeps of a whole tensor of the parameter's shape, padding left out."""
    part = whole if slot.split is None else part_of(whole, slot.split)
    if slot.shard is None:
        return part
    begin, end = slot.form.bounds(slot.padded_rows)
    return (part.t() if slot.turned else part)[begin:end]


def _placed(name: str, parameter: nn.Parameter, axes: Axes, layout: Layout) -> Slot:
    split = layout.splits.get(name)
    whole = parameter.detach()
    part = whole if split is None else part_of(whole, split).contiguous()
    form = form_of(whole, part, split, axes)
    local = part
    if form.shard is not None:
        stored = part.t() if form.turned else part
        rows = -(-form.rows // form.shard.size)
        local = stored.new_zeros((rows, *stored.shape[1:]))
        begin, end = form.bounds(rows)
        local[: end - begin] = stored[begin:end]
    public = _public(form, local, parameter)
    return Slot(name=name, local=local, public=public, form=form, summed=name in layout.summed)


def _public(form: Form, local: torch.Tensor, parameter: nn.Parameter) -> nn.Parameter:
    """What the module shows: the parameter itself when it is whole."""
    return parameter if form.shard is None and form.split is None else nn.Parameter(shown(form, local))


def _require_same(known: Placement, kind: str, axes: Axes, layout: Layout) -> None:
    forms = {slot.name: slot.split.form for slot in known.slots if slot.split is not None}
    wanted = {name: split.form for name, split in layout.splits.items()}
    over_same = known.axes.names == axes.names
    if known.world is not dist.group.WORLD:  # groups made after an abort may have other names
        over_same = known.axes.places == axes.places
    if not over_same or (known.kind, forms) != (kind, wanted):
        raise StrategyError(
            f"this model is already placed by {_words(known.kind, known.axes)}, with {len(forms)} split parameters; "
            f"{_words(kind, axes)} with {len(wanted)} was asked for; build a fresh model for it"
        )


def _words(kind: str, axes: Axes) -> str:
    first, _, second = kind.partition(", ")
    return f"{first if first == second else f'{first} and {second}'} over {axes.ranks} ranks"


def _publish(model: nn.Module, optimizer: torch.optim.Optimizer | None, placement: Placement) -> None:
    """Put the placed parameters where the module and the optimizer hold the plain ones."""
    names = {slot.name: slot for slot in placement.slots}
    instead = {id(p): names[name].public for name, p in model.named_parameters() if name in names}
    for module, key, parameter in list(_owners(model)):
        if id(parameter) in instead:
            setattr(module, key, instead[id(parameter)])
    if optimizer is None:
        return
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
