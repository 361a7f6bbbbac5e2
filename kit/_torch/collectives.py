"""Functional collectives: the operators that can live inside a graph.

`torch.ops._c10d_functional` is what torch's own compiler emits; it takes a group's name, returns
a new tensor at once, and `wait_tensor` waits for it. Seen on 2.11 (NCCL) and 2.13 (gloo).
"""

from typing import Any

import torch
import torch.distributed as dist

_ops: Any = torch.ops._c10d_functional

ALL_REDUCE = _ops.all_reduce.default
ALL_GATHER = _ops.all_gather_into_tensor.default
REDUCE_SCATTER = _ops.reduce_scatter_tensor.default
WAIT = _ops.wait_tensor.default


def group_name(group: dist.ProcessGroup) -> str:
    """The name by which operators in a graph find the group."""
    return str(group.group_name)


def all_reduce_sum(tensor: torch.Tensor, group: str) -> torch.Tensor:
    """Sum over ranks, same shape."""
    return WAIT(ALL_REDUCE(tensor, "sum", group))  # type: ignore[no-any-return]


def all_gather(tensor: torch.Tensor, group: str, world_size: int) -> torch.Tensor:
    """`[rows, ...]` on each rank to `[world_size * rows, ...]`, in rank order."""
    return WAIT(ALL_GATHER(tensor, world_size, group))  # type: ignore[no-any-return]


def reduce_scatter_sum(tensor: torch.Tensor, group: str, world_size: int) -> torch.Tensor:
    """`[world_size * rows, ...]` summed over ranks; each rank keeps its own `[rows, ...]`."""
    return WAIT(REDUCE_SCATTER(tensor, "sum", world_size, group))  # type: ignore[no-any-return]


def is_collective(target: object) -> bool:
    """Whether a node target starts a functional collective."""
    return target in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER)


def is_in_place_collective(target: object) -> bool:
    """Whether a node target is an ordinary in-place `torch.distributed` call, which nothing waits for.

    make_fx records `dist.all_reduce` as `c10d.allreduce_` without a wait, so a replay reads the
    tensor before it is reduced (pytorch issue 179922, seen on 2.13).
    """
    return getattr(target, "namespace", "") == "c10d"
