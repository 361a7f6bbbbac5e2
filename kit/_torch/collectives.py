"""Functional collectives: the operators that can live inside a graph.

`torch.ops._c10d_functional` is what torch's own compiler emits; it takes a group's name, returns
a new tensor at once, and `wait_tensor` waits for it. Seen on 2.11 (NCCL) and 2.13 (gloo).
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from kit._torch import gloo_gathers  # noqa: F401  # for a step outside the kit's ranks, under torchrun say

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


def gathers_may_overlap(group: str, device_type: str) -> bool:
    """Whether two functional all-gathers of the group of that name may be in flight at once.

    Not on gloo: in plain torch 2.13 two of them corrupt the heap within seconds (SIGSEGV, "unaligned tcache chunk"),
    and one at a time may (see `gloo_gathers`, which avoids the code that two ranks died in).
    All-reduces and reduce-scatters in flight, also beside one gather, ran for minutes without fault.
    """
    resolve: Any = distributed_c10d._resolve_process_group  # type: ignore[attr-defined]
    backend = str(dist.get_backend(resolve(group)))
    return device_type == "cuda" or "gloo" not in backend


def is_collective(target: object) -> bool:
    """Whether a node target starts a functional collective."""
    return target in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER)


def is_started(target: object) -> bool:
    """Whether a node target starts any functional collective, so that its result has not arrived without a wait."""
    return getattr(target, "namespace", "") == "_c10d_functional" and target is not WAIT


def is_in_place_collective(target: object) -> bool:
    """Whether a node target is an ordinary in-place `torch.distributed` call, which nothing waits for.

    make_fx records `dist.all_reduce` as `c10d.allreduce_` without a wait, so a replay reads the
    tensor before it is reduced (pytorch issue 179922, seen on 2.13).
    """
    return getattr(target, "namespace", "") == "c10d"
