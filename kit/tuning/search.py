"""Measure what a micro-batch costs, with the global batch kept as it is.

The largest micro-batch that fits is not the fastest: a short last micro-batch costs almost a whole
one. So settings are listed for one fixed global batch and each is run, on all ranks, with the real
step. Parameters, optimizer state and random state are put back after each.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist

from kit import progress
from kit.step.compiled import CompiledStep
from kit.tuning.record import Measurement, Setting, TuneReport

# A setting's step and the windows of micro-batches to feed it: `step(*window)`.
Build = Callable[[Setting], tuple[CompiledStep, Iterable[Sequence[Any]]]]


def settings_for(
    global_batch: int, world_size: int, *, micro_batches: Sequence[int] | None = None
) -> tuple[Setting, ...]:
    """The ways to split `global_batch` samples over `world_size` ranks, smallest micro-batch first.

    `micro_batches`: the sizes to try; default the powers of two up to a rank's share.
    Raises `ValueError` when the global batch does not divide by the ranks, or a size exceeds a share.
    """
    if global_batch < 1 or world_size < 1 or global_batch % world_size:
        lower = max(1, global_batch // world_size) * world_size
        raise ValueError(
            f"a global batch of {global_batch} does not divide over {world_size} ranks; expected a multiple of "
            f"{world_size}, such as {lower} or {lower + world_size}"
        )
    share = global_batch // world_size
    sizes = sorted(set(micro_batches or [2**power for power in range(share.bit_length())]))
    wrong = [size for size in sizes if not 1 <= size <= share]
    if wrong:
        raise ValueError(
            f"micro-batch {wrong[0]} does not fit: each of {world_size} ranks gets {share} of {global_batch} samples; "
            f"expected sizes from 1 to {share}"
        )
    return tuple(Setting(micro_batch=size, accumulation=share // size, remainder=share % size) for size in sizes)


def measure_setting(setting: Setting, build: Build, *, steps: int = 3, warmup: int = 1) -> Measurement:
    """Build and run one setting on this rank; every rank calls it together (SPMD).

    `seconds_per_step` is the median over `steps` of the slowest rank's time. The peak is the CUDA
    allocator's where there is one, else the liveness of the step's graph. What was trained is undone.
    """
    if steps < 1 or warmup < 0:
        raise ValueError(
            f"steps {steps} and warmup {warmup}; expected at least 1 measured step and no negative warm-up"
        )
    step, windows = build(setting)
    batches = _windows(windows, steps + warmup)
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    with step.undone():
        for number, window in enumerate(batches):
            dist.barrier(device_ids=[torch.cuda.current_device()] if cuda else None)
            begun = time.perf_counter()
            step(*window)
            if cuda:
                torch.cuda.synchronize()
            if number >= warmup:
                seconds.append(time.perf_counter() - begun)
    peak = torch.cuda.max_memory_allocated() if cuda else step.predicted_peak_bytes
    slowest, fullest = _over_ranks(seconds, peak, cuda=cuda)
    return Measurement(
        setting=setting,
        seconds_per_step=slowest,
        samples_per_second=setting.samples * dist.get_world_size() / slowest,
        peak_bytes=fullest,
        peak_method="CUDA allocator, measured" if cuda else "liveness of the step's graph, predicted",
    )


def report_of(global_batch: int, world_size: int, measurements: Iterable[Measurement]) -> TuneReport:
    """Join measurements of one global batch."""
    return TuneReport(global_batch=global_batch, world_size=world_size, measurements=tuple(measurements))


def measured(
    settings: Sequence[Setting], measure: Callable[[Setting], Measurement], *, failures: tuple[type[Exception], ...]
) -> Iterator[Measurement]:
    """Measure settings one after another; a setting that fails is reported and the rest goes on."""
    with progress.task("tune", total=len(settings)) as work:
        for setting in settings:
            try:
                result = measure(setting)
            except failures as error:
                result = _failed(setting, error)
            work.advance(f"micro-batch {setting.micro_batch} x accumulation {setting.accumulation}")
            yield result


def _failed(setting: Setting, error: Exception) -> Measurement:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return Measurement(
        setting=setting, seconds_per_step=0.0, samples_per_second=0.0, peak_bytes=0, peak_method="", failure=reason
    )


def _windows(windows: Iterable[Sequence[Any]], needed: int) -> list[Sequence[Any]]:
    """The windows to use, taken before the first step so that no rank runs out alone."""
    taken = list(islice(windows, needed))
    if len(taken) < needed:
        raise ValueError(
            f"build(setting) gave {len(taken)} windows of micro-batches, {needed} are needed; give an endless "
            "iterator, such as itertools.repeat(window)"
        )
    return taken


def _over_ranks(seconds: Sequence[float], peak: int, *, cuda: bool) -> tuple[float, int]:
    """Median over steps of the slowest rank, and the fullest rank's peak."""
    values = torch.tensor([*seconds, float(peak)], dtype=torch.float64, device="cuda" if cuda else "cpu")
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    *slowest, fullest = values.tolist()
    return statistics.median(slowest), int(fullest)
