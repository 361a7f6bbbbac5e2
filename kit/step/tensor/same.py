"""What the ranks of one tensor-parallel group must have alike beside the graph: batches, random state, gradients.

All of them compute the same loss of the same batch; what differs between them would train each rank's copy of the
parameters that all keep whole in another direction, without a word.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from kit.step.inputs import batch_tensors
from kit.step.mesh import Axis
from kit.step.precision import Precision
from kit.step.strategy import StrategyError

_SAMPLES = 4096  # of each value
# Largest relative difference (2-norm): what another order of summation leaves, with room.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
_TOLERANCE_OF_HALF = 0.1


def require_same_batch(window: Any, axis: Axis | None) -> None:
    """Raise `StrategyError` unless all ranks of the tensor axis were given the same batch. A collective call."""
    if axis is None:
        return
    digest = hashlib.sha256()
    for tensor in batch_tensors(window):
        digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    digests = [""] * axis.size
    dist.all_gather_object(digests, digest.hexdigest(), group=axis.mesh.get_group())
    if len(set(digests)) > 1:
        other = next(rank for rank, seen in enumerate(digests) if seen != digests[0])
        raise StrategyError(
            f"ranks of one tensor-parallel group were given different batches (rank {other} of it differs from rank "
            "0); expected one batch for the group: choose samples by the rank on the data axis, "
            "mesh.get_local_rank('dp'), not by the global rank"
        )


def share_random_state(module: torch.fx.GraphModule, axis: Axis | None) -> None:
    """When a step draws random numbers, give the ranks of the tensor axis one random state. A collective call.

    What they keep whole (residuals) must be dropped alike.
    """
    if axis is None or not any(_draws(node) for node in module.graph.nodes):
        return
    is_cuda = axis.mesh.device_type == "cuda"
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if is_cuda else [])]
    dist.broadcast_object_list(states, group=axis.mesh.get_group(), group_src=0)
    torch.set_rng_state(states[0])
    if is_cuda:
        torch.cuda.set_rng_state(states[1])


class SameGradients:
    """Compares once what a loss outside the graph gives the ranks of a tensor axis; nothing when there is none."""

    def __init__(self, axis: Axis | None, precision: Precision | None) -> None:
        self._axis, self._precision = axis, precision

    def require(self, gradients: Sequence[torch.Tensor]) -> None:
        """Raise `StrategyError` when the outputs' gradients differ. A collective call, the first time."""
        axis, self._axis = self._axis, None
        if axis is None:
            return
        samples = [sample(gradient) for gradient in gradients]
        everybody: list[list[torch.Tensor]] = [[] for _ in range(axis.size)]
        dist.all_gather_object(everybody, samples, group=axis.mesh.get_group())
        for other, theirs in enumerate(everybody):
            for one, first in zip(theirs, everybody[0], strict=True):
                if not (far := distance(one, first)) <= tolerance(first, self._precision):
                    raise StrategyError(
                        "ranks of one tensor-parallel group gave the module's output different gradients (rank "
                        f"{other} of it differs from rank 0 by {far:.1e}); expected the same loss on all of them: the "
                        "same targets, and no split of the output by rank. TP(verify=False) leaves this out"
                    )


def sample(value: torch.Tensor) -> torch.Tensor:
    """Elements of a value, evenly taken, on the CPU."""
    flat = value.detach().flatten()
    return flat[:: max(1, flat.numel() // _SAMPLES)].cpu()


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative difference of two samples (2-norm); infinite when one is longer, none when they are NaN alike."""
    if one.shape != other.shape:
        return float("inf")
    if torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True):
        return 0.0
    scale, far = float(other.double().norm()), float((one.double() - other.double()).norm())
    return far / scale if scale else far


def tolerance(value: torch.Tensor, precision: Precision | None = None) -> float:
    """The largest `distance` that rounding explains; `precision`: what the value was computed in, if not its own."""
    if precision is not None:
        return _TOLERANCE_OF_HALF
    is_rounded = value.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"  # TF32
    return _TOLERANCE_OF_HALF if is_rounded else _TOLERANCE.get(value.dtype, _TOLERANCE_OF_HALF)


def _draws(node: torch.fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
