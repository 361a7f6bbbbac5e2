"""Functional all-gathers on CPU tensors without gloo's coalesced gather.

`_c10d_functional.all_gather_into_tensor` on a CPU tensor runs gloo's `allgather_coalesced`. Two ranks on a loaded
machine died in it (2.13; SIGSEGV in malloc of gloo's thread, by a core dump), each with one gather in flight; the
deaths could not be brought about again, so that this was the cause is likely, not proved (pytorch issue 65231 tells
of faults in the same code). The variant with `out=` runs the plain gather, in which none was seen. Here the first is
answered by the second for all of a process: steps of the kit, and DTensor and FSDP2 beside them. Values are the same.

Seen on 2.13: the operator has one kernel for all devices, so that one for CPU alone replaces none.
"""

from typing import Any

import torch

_OPERATORS: Any = torch.library.Library("_c10d_functional", "IMPL")  # type: ignore[no-untyped-call]


def _gather(tensor: torch.Tensor, group_size: int, group_name: str) -> torch.Tensor:
    """`[rows, ...]` on each rank to `[group_size * rows, ...]`, in rank order, to be waited for."""
    out = tensor.new_empty((tensor.shape[0] * group_size, *tensor.shape[1:]))
    into = torch.ops._c10d_functional.all_gather_into_tensor_out.default
    return into(tensor, group_size, group_name, out=out)  # type: ignore[no-any-return]


def _gather_each(tensors: list[torch.Tensor], group_size: int, group_name: str) -> list[torch.Tensor]:
    return [_gather(tensor, group_size, group_name) for tensor in tensors]


_OPERATORS.impl("all_gather_into_tensor", _gather, "CPU")
_OPERATORS.impl("all_gather_into_tensor_coalesced", _gather_each, "CPU")
