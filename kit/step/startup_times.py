"""Measure what each way to run a training step costs before it runs well: build, first step, steady step, memory.

Each way gets a fresh model of the same seed, the same batch and an empty compiler cache, on all ranks. The peers
are torch's own: the model under DDP or FSDP2, as it is and under `torch.compile`, which compiles at the first step.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from kit import progress
from kit._torch.executors import fresh_compiler
from kit.step.compiled import CompiledStep, compile_step
from kit.step.peak import Peak
from kit.step.start_record import Start, StartUp
from kit.step.strategy import DDP, FSDP, Strategy, strategy_of
from kit.step.trace import Loss

EAGER, LAZY, WHOLE = "eager", "lazy torch.compile, ", "whole step, "
# What needs no C++ or Triton compiler first: those take minutes on two cores.
QUICK = (EAGER, f"{LAZY}aot_eager", f"{WHOLE}eager", f"{WHOLE}aot_eager")
MODES = (*QUICK, f"{LAZY}inductor", f"{WHOLE}inductor")
FAILURES = (RuntimeError, ValueError, TypeError, NotImplementedError, AssertionError)

Run = Callable[[Any], torch.Tensor]


class NoPeerError(ValueError):
    """A strategy that torch's eager modules have no plain peer for."""


def startup(
    make_model: Callable[[], nn.Module],
    loss: Loss,
    batch: Any,
    *,
    make_optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW,
    strategy: str | Strategy = "ddp",
    modes: Sequence[str] = MODES,
    steps: int = 5,
    seed: int = 0,
    **options: Any,
) -> StartUp:
    """Measure `modes` one after the other on this rank; every rank calls it together (SPMD).

    `make_model()` returns the plain model on its device; it is seeded with `seed` before each call.
    `options` are those of `compile_step`. A way that fails has no figures and its error as the reason; it must fail
    on all ranks alike. Raises `ValueError` for an unknown mode or fewer than one step.
    """
    unknown = [mode for mode in modes if mode != EAGER and not mode.startswith((LAZY, WHOLE))]
    if unknown or not modes or steps < 1:
        raise ValueError(f"modes {unknown or list(modes)}, steps {steps}; expected some of {list(MODES)}, steps >= 1")
    chosen = strategy_of(strategy)
    starts, method = [], ""
    device = next(make_model().parameters()).device
    with progress.task("start-up", total=len(modes)) as work:
        for mode in modes:

            def build(mode: str = mode) -> Run:
                torch.manual_seed(seed)
                return _built(mode, make_model(), loss, batch, make_optimizer, chosen, options)

            start, method = _measured(mode, build, batch, steps, device)
            starts.append(start)
            work.advance(mode)
    return StartUp(
        strategy=repr(chosen), world_size=dist.get_world_size(), device=device.type, steps=steps, peak_method=method,
        starts=tuple(starts),
    )  # fmt: skip


def _measured(mode: str, build: Callable[[], Run], batch: Any, steps: int, device: torch.device) -> tuple[Start, str]:
    with fresh_compiler():
        _together(device)
        peak = Peak(device)
        try:
            begun = time.perf_counter()
            run = build()
            seconds = [_since(begun, device)]
            for _ in range(steps + 2):  # one that compiles, one that may compile again, then steady ones
                begun = time.perf_counter()
                value = run(batch)
                seconds.append(_since(begun, device))
        except FAILURES as error:
            first = (str(error).strip().splitlines() or [""])[0]
            return Start(mode=mode, why=f"{type(error).__name__}: {first}"), peak.method
        taken = peak.bytes_taken()
        built, first_step, _, *steady, most = _over_ranks([*seconds, float(taken or 0)], dist.ReduceOp.MAX, device)
        (total,) = _over_ranks([float(value)], dist.ReduceOp.SUM, device)
    return Start(
        mode=mode,
        build_seconds=built,
        first_seconds=first_step,
        steady_seconds=statistics.median(steady),
        peak_bytes=None if taken is None else int(most),
        loss=total / dist.get_world_size(),
    ), peak.method


def _built(
    mode: str,
    model: nn.Module,
    loss: Loss,
    batch: Any,
    make_optimizer: Callable[[Any], torch.optim.Optimizer],
    strategy: Strategy,
    options: dict[str, Any],
) -> Run:
    if mode.startswith(WHOLE):
        step: CompiledStep = compile_step(
            model, make_optimizer(model.parameters()), loss, batch,
            strategy=strategy, executor=mode.removeprefix(WHOLE), **options,
        )  # fmt: skip
        return step
    if options:
        raise NoPeerError(f"torch's own peer is measured without {', '.join(options)}; leave the options out to see it")
    spread = _spread(model, strategy)
    optimizer = make_optimizer(spread.parameters())
    called: Any = spread if mode == EAGER else torch.compile(spread, backend=mode.removeprefix(LAZY))

    def run(batch: Any) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        result = loss(called, batch)
        value = result[0] / result[1] if isinstance(result, tuple) else result
        torch.autograd.backward(value)
        optimizer.step()
        return value.detach()

    return run


def _spread(model: nn.Module, strategy: Strategy) -> nn.Module:
    """The model under torch's own module for a strategy; under FSDP2 each item of a module list is a unit."""
    if isinstance(strategy, DDP) and strategy.axis is None:
        return DistributedDataParallel(model)
    if isinstance(strategy, FSDP) and strategy.axis is None:
        reshard = strategy.reshard_after_forward
        for module in model.modules():
            if isinstance(module, nn.ModuleList):
                for unit in module:
                    fully_shard(unit, reshard_after_forward=reshard)
        fully_shard(model, reshard_after_forward=reshard)
        return model
    raise NoPeerError(f"{strategy!r} has no one eager peer in torch; expected DDP or FSDP over all ranks")


def _since(begun: float, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def _together(device: torch.device) -> None:
    dist.barrier(device_ids=[torch.cuda.current_device()] if device.type == "cuda" else None)


def _over_ranks(values: list[float], how: Any, device: torch.device) -> list[float]:
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=how)
    return list(tensor.tolist())
