"""Time graphs of a step against each other on all ranks, without training with them."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from kit.step.inputs import Inputs, batch_tensors
from kit.step.mesh import Axes
from kit.step.undo import undone

Run = Callable[..., Any]

WARM_UP = 2
LEAST_ROUNDS, MOST_ROUNDS, SECONDS = 5, 30, 2.0  # quick steps are repeated until about so much time is spent


def slowest_seconds(
    runs: Sequence[Run], inputs: Inputs, axes: Axes, *, window: Sequence[Any], warm_up: int = WARM_UP
) -> list[float]:
    """Median seconds of one step of each run, on the slowest rank: the same list on every rank. A collective call.

    The runs take turns, so that a machine that slows down slows all of them. State is put back at the end.
    """
    held, batch = inputs.held(), batch_tensors(window)
    rounds: list[list[float]] = []
    wanted = LEAST_ROUNDS
    with undone(held), torch.no_grad():
        for run in runs:
            for _ in range(warm_up):
                run(*held, *batch)
        while len(rounds) < wanted:
            rounds.append([_seconds(run, held, batch, axes) for run in runs])
            if len(rounds) == LEAST_ROUNDS:  # all ranks decide alike: what they compare is the same
                spent = slowest([sum(map(sum, rounds))], axes, device=held[0].device)[0]
                wanted = min(MOST_ROUNDS, int(LEAST_ROUNDS * SECONDS / spent))
    medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
    return slowest(medians, axes, device=held[0].device)


def _seconds(run: Run, held: Sequence[torch.Tensor], batch: Sequence[torch.Tensor], axes: Axes) -> float:
    _together(axes, held[0])
    begun = time.perf_counter()
    run(*held, *batch)
    if held[0].is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def slowest(values: Sequence[float], axes: Axes, *, device: torch.device) -> list[float]:
    """The largest of each value over the ranks. A collective call."""
    largest = torch.tensor(values, dtype=torch.float64, device=device)
    for axis in axes:
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=axis.mesh.get_group())
    return [float(value) for value in largest]


def _together(axes: Axes, example: torch.Tensor) -> None:
    """Wait until every rank is here and the device is idle."""
    slowest([0.0], axes, device=example.device)
    if example.is_cuda:
        torch.cuda.synchronize()
