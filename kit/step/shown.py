"""How what a rank keeps of a parameter is shown: as a DTensor over the rows that are no padding.

Parameters and optimizer state have the same form, so both are shown by this.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from kit._torch.strided import strided_shard
from kit.step.mesh import Axes, Axis
from kit.step.tensor.split import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A parameter as one rank keeps it.

    `shape`, `stride` of the whole; `part` of what this rank computes with (all of it, or its part of a split module).
    `shard`: the axis whose ranks keep rows of the part. `turned`: they keep rows of its transpose.
    """

    shape: torch.Size
    stride: tuple[int, ...]
    part: torch.Size
    shard: Axis | None = None
    split: Split | None = None
    turned: bool = False
    grid: DeviceMesh | None = None

    @property
    def rows(self) -> int:
        """Rows of the part, in the direction that it is sharded in."""
        return int(self.part[1] if self.turned else self.part[0])

    def bounds(self, padded_rows: int) -> tuple[int, int]:
        """The first row of this rank's shard and the row after its last, padding left out."""
        index = 0 if self.shard is None else self.shard.index
        begin, end = (min(self.rows, padded_rows * i) for i in (index, index + 1))
        return begin, end


def form_of(parameter: torch.Tensor, part: torch.Tensor, split: Split | None, axes: Axes) -> Form:
    """The form that a parameter gets over the axes.

    Packed blocks cut over the tensor axis are sharded along the other dim: no DTensor placement says otherwise.
    """
    shard = axes.shard if part.dim() else None
    turned = shard is not None and split is not None and split.packs > 1
    if turned and part.dim() < 2:
        shard, turned = None, False
    return Form(
        shape=parameter.shape, stride=parameter.stride(), part=part.shape, shard=shard, split=split, turned=turned,
        grid=axes.grid,
    )  # fmt: skip


def shown(form: Form, local: torch.Tensor) -> torch.Tensor:
    """`local` (a parameter or state of one, in the given form) as the user sees it."""
    if form.shard is None and form.split is None:
        return local
    if form.shard is not None:
        begin, end = form.bounds(local.shape[0])
        local = local[: end - begin]
        local = local.t() if form.turned else local
    mesh, placements = _placements(form)
    value = DTensor.from_local(local, mesh, placements, run_check=False, shape=form.shape, stride=form.stride)
    return cast(torch.Tensor, value)


def _placements(form: Form) -> tuple[DeviceMesh, list[Placement]]:
    split, shard = form.split, form.shard
    if split is None:
        if shard is None:
            raise ValueError("a parameter that is whole on every rank has no placements; expected a shard or a part")
        return shard.mesh, [Shard(0)]
    if shard is None:
        return split.axis.mesh, [strided_shard(split.dim, split.packs)]
    if form.grid is None:
        raise ValueError("a part that is sharded needs the mesh of both axes; expected Axes.grid")
    names = form.grid.mesh_dim_names or ()
    by_name: dict[str, Placement] = {name: Replicate() for name in names}
    by_name[_name(split.axis)] = strided_shard(split.dim, split.packs)
    # Rows are cut over the tensor axis first; an outer data axis then sees them in that many pieces.
    pieces = split.axis.size if split.dim == 0 and names[0] == _name(shard) else 1
    by_name[_name(shard)] = Shard(1) if form.turned else strided_shard(0, pieces)
    return form.grid, [by_name[name] for name in names]


def _name(axis: Axis) -> str:
    return (axis.mesh.mesh_dim_names or ("",))[0]
