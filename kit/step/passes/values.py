"""Run a step's graph in one process, on real tensors, with collectives that need no other rank.

To prove a rewrite, the graph before and after it must give the same numbers on the same inputs. The
other ranks are played: rank r is taken to send `1 - r / (2 * ranks)` times what this rank sends, element
by element, so a tensor packed in the wrong order or taken from the wrong rank gives another result.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter

from kit._torch import collectives

PLAYED_RANKS = 2  # of an all-reduce, which does not say how many there are

# Atomic additions on a GPU (the gradient of an embedding) round differently at each run.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_COARSE = 5e-2


class NotPlayedError(NotImplementedError):
    """A collective that one process cannot play."""


def results_of(module: GraphModule, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What the graph returns and what it leaves in its inputs, which are copied first; random draws from seed 0.

    Raises `NotPlayedError`.
    """
    own = [tensor.clone() for tensor in inputs]
    cuda = sorted({tensor.device.index for tensor in own if tensor.is_cuda})
    with torch.random.fork_rng(devices=cuda), torch.no_grad():
        torch.manual_seed(0)
        outputs = _Alone(module, garbage_collect_values=True).run(*own)
    return [output for output in outputs if isinstance(output, torch.Tensor)] + own


def first_difference(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> str:
    """Which result differs and by how much, "" when all are equal up to rounding."""
    if len(before) != len(after):
        return f"{len(after)} results, expected {len(before)}"
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        if old.shape != new.shape or old.dtype != new.dtype:
            return f"result {number} is {new.dtype}{list(new.shape)}, expected {old.dtype}{list(old.shape)}"
        error, allowed = _error(old, new), _TOLERANCE.get(old.dtype, _COARSE if old.is_floating_point() else 0.0)
        if not error <= allowed:
            return f"result {number} differs by {error:.2g} of its largest element, at most {allowed:g} is rounding"
    return ""


def _error(old: torch.Tensor, new: torch.Tensor) -> float:
    """The largest difference as a share of the largest element; the same infinities and NaNs are equal."""
    if torch.equal(old, new) or old.numel() == 0:
        return 0.0
    if not old.is_floating_point():
        return float((old != new).double().mean())
    old, new = old.double(), new.double()
    finite = old.isfinite()
    if not torch.equal(finite, new.isfinite()) or not finite.any():
        return float("inf") if not torch.equal(old.nan_to_num(), new.nan_to_num()) else 0.0
    largest = old[finite].abs().max().clamp(min=1e-30)
    return float((old[finite] - new[finite]).abs().max() / largest)


class _Alone(Interpreter):
    """Runs a graph node by node and plays its collectives."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        play = _PLAYED.get(target)
        if play is not None:
            return play(*args)
        if getattr(target, "namespace", "") == collectives.WAIT.namespace:
            raise NotPlayedError(f"{target} cannot be played by one process")
        return super().call_function(target, args, kwargs)


def _sent(tensor: torch.Tensor, ranks: int) -> list[torch.Tensor]:
    """What each played rank sends."""
    if tensor.dtype is torch.bool:
        return [tensor] * ranks
    return [(tensor * (1 - rank / (2 * ranks))).to(tensor.dtype) for rank in range(ranks)]


def _all_reduce(tensor: torch.Tensor, operation: str, group: Any) -> torch.Tensor:
    return _reduced(operation, torch.stack(_sent(tensor, PLAYED_RANKS)))


def _all_gather(tensor: torch.Tensor, ranks: int, group: Any) -> torch.Tensor:
    return torch.cat(_sent(tensor, ranks))


def _reduce_scatter(tensor: torch.Tensor, operation: str, ranks: int, group: Any) -> torch.Tensor:
    return _reduced(operation, torch.stack(_sent(tensor, ranks))).chunk(ranks)[-1].clone()


def _reduced(operation: str, stacked: torch.Tensor) -> torch.Tensor:
    if operation not in _REDUCED:
        raise NotPlayedError(f"a reduction {operation!r} cannot be played by one process")
    return _REDUCED[operation](stacked)


def _sum(stacked: torch.Tensor) -> torch.Tensor:
    return stacked.sum(0, dtype=stacked.dtype)


_REDUCED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": _sum,
    "avg": lambda stacked: stacked.mean(0),
    "max": lambda stacked: stacked.amax(0),
    "min": lambda stacked: stacked.amin(0),
    "product": lambda stacked: stacked.prod(0),
}

_PLAYED: dict[object, Callable[..., torch.Tensor]] = {
    collectives.ALL_REDUCE: _all_reduce,
    collectives.ALL_GATHER: _all_gather,
    collectives.REDUCE_SCATTER: _reduce_scatter,
    collectives.WAIT: lambda tensor: tensor,
}
