"""Profile some steps of this rank and read the result as a one-rank Timeline.

The trace goes through a temporary file and the same reader as any other trace, so a live profile and a file of years
ago are the same record. Steps are marked by the profiler's schedule; the profiler starts before the first warm-up
step, so that its own start-up cost falls there and nothing of the active steps is lost.
"""

import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from kit import progress
from kit.timeline.memory_counters import with_memory
from kit.timeline.merge import merge
from kit.timeline.read import read_file
from kit.timeline.record import Part, Timeline

__all__ = ["merge", "profile_rank"]


def profile_rank(
    step: Callable[[Any], object],
    batches: Iterable[Any],
    *,
    warmup: int = 1,
    active: int = 3,
    device: str = "cpu",
    memory: bool = False,
) -> Timeline:
    """Run `warmup + active` steps of this rank, one a batch, and return the active ones as a Timeline.

    `step` is called with one item of `batches` and should be a whole training step. SPMD: every rank of a group calls
    this with as many batches. The rank is that of the initialised process group, else 0. `device` other than "cpu"
    also records its kernels. Profiled steps are slower than free ones (measured on H200: 20 to 60 %).
    `memory` also records each change of the allocators and the Python frames around it (slower still);
    `kit.measure(timeline, "memory")` tells the peak with its place.
    Raises `ValueError`, before any step runs, when there are fewer batches than steps.
    """
    if warmup < 1 or active < 1:
        raise ValueError(
            f"warmup {warmup}, active {active}; expected at least 1 of each: the profiler's own start-up falls into "
            "the first warm-up step"
        )
    chosen = _first(batches, warmup, active)
    rank, world_size, backend = _place()
    with tempfile.TemporaryDirectory(prefix="kit-profile-") as folder:
        path = Path(folder) / f"rank{rank}.json"
        _run(step, chosen, warmup=warmup, device=device, path=path, memory=memory)
        timeline = read_file(path, rank=rank)
        if memory:
            timeline = with_memory(timeline, path)
    part = replace(timeline.parts[0], source="kit.profile", world_size=world_size, backend=backend)
    return _with_part(timeline, part)


def _first(batches: Iterable[Any], warmup: int, active: int) -> list[Any]:
    """The batches to use, taken before the first step: a rank that ran out midway would leave the others waiting."""
    needed = warmup + active
    chosen = list(itertools.islice(batches, needed))
    if len(chosen) < needed:
        known = f"{len(batches)} batches" if isinstance(batches, Sized) else f"{len(chosen)} batches"
        raise ValueError(
            f"profile got {known}, expected at least {needed} (warmup {warmup} + active {active}). Give more batches, "
            f"for instance itertools.repeat(batch, {needed}), or lower active="
        )
    return chosen


def _place() -> tuple[int, int, str]:
    """This rank, the world size and the backend; (0, 1, "") without a process group."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size(), str(dist.get_backend())
    return 0, 1, ""


def _run(
    step: Callable[[Any], object], batches: list[Any], *, warmup: int, device: str, path: Path, memory: bool
) -> None:
    from torch.profiler import ProfilerActivity, profile, schedule

    activities = [ProfilerActivity.CPU]
    if device.split(":")[0] == "cuda":
        activities.append(ProfilerActivity.CUDA)
    plan = schedule(wait=0, warmup=warmup, active=len(batches) - warmup, repeat=1)
    recorder = profile(
        activities=activities,
        schedule=plan,
        profile_memory=memory,
        with_stack=memory,
        acc_events=True,  # torch 2.11 warns that events of earlier cycles go; there is one cycle
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
    )
    with progress.task("profile", total=len(batches)) as work, _quiet_kineto(device), recorder:
        for number, batch in enumerate(batches):
            step(batch)
            _settle(device)
            recorder.step()
            work.advance("warm-up" if number < warmup else f"active step {number - warmup + 1}")


@contextmanager
def _quiet_kineto(device: str) -> Iterator[None]:
    """Keep Kineto's own log lines out of a rank's output.

    torch 2.13 writes two "USDT:" lines for each profile on the CPU, at every level below 6; that level also hides
    errors, so it is not used with a GPU, whose start-up can fail.
    """
    name = "KINETO_LOG_LEVEL"
    if device != "cpu" or name in os.environ:
        yield
        return
    os.environ[name] = "6"
    try:
        yield
    finally:
        del os.environ[name]


def _settle(device: str) -> None:
    """Let the device finish, so that a step's kernels are inside its mark and none is cut off at the end."""
    if device.split(":")[0] == "cuda":
        import torch

        torch.cuda.synchronize(device)


def _with_part(timeline: Timeline, part: Part) -> Timeline:
    return replace(timeline, parts=(part,), notes=merge([replace(timeline, parts=(part,))]).notes)
