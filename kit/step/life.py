"""What a step must remember beside its tensors: in which group it lives, how far it has come.

A person may stop ranks at any moment. A step takes no interrupt while it runs, so it ends whole or
fails in a collective, before its update changes anything. Only ranks that were stopped at different
steps, or a GPU whose collectives were aborted under a running step, hold parameters of no one step:
that is found by comparing once after every stop, and never trained on without a word.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch
import torch.distributed as dist

from kit._torch.groups import before_abort
from kit.step.mesh import Axes, Axis


class InterruptedStepError(RuntimeError):
    """Ranks no longer hold the parameters of one step."""


class Life:
    """`done`: steps this rank has finished. `spoiled`: aborted while the GPU still ran a step.

    `unusable`: why no step may run, "" when it may.
    """

    def __init__(self, *, is_cuda: bool) -> None:
        self.world: object = dist.group.WORLD
        self.done = 0
        self.spoiled = False
        self.unusable = ""
        self._finished = torch.cuda.Event() if is_cuda else None  # type: ignore[no-untyped-call]
        self._tell = self._note_abort  # held here: the list of those to tell is weak
        if is_cuda:
            before_abort(self._tell)

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step runs inside this block; an interrupt that comes meanwhile is raised at its end."""
        self.require_usable()
        with _interrupts_deferred():
            yield
            self.done += 1
            if self._finished is not None:
                self._finished.record()

    def require_usable(self) -> None:
        """Raise `InterruptedStepError` when the parameters are of no one step."""
        if self.unusable:
            raise InterruptedStepError(self.unusable)

    def _note_abort(self) -> None:
        if self._finished is not None and not self._finished.query():  # type: ignore[no-untyped-call]
            self.spoiled = True


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """SIGINT that arrives in the block reaches its handler when the block is over."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if seen and callable(before):
        before(*seen[0])


def require_same_step(life: Life, axes: Axes) -> None:
    """Raise `InterruptedStepError` unless ranks that share parameters hold the same step. A collective call."""
    for axis in axes:
        _compare(life, axis)


def _compare(life: Life, axis: Axis) -> None:
    mine = torch.tensor([life.done, int(life.spoiled)], device=axis.mesh.device_type)
    everybody = [torch.empty_like(mine) for _ in range(axis.size)]
    dist.all_gather(everybody, mine, group=axis.mesh.get_group())
    seen = [(int(one[0]), bool(one[1])) for one in everybody]
    if len({done for done, _ in seen}) == 1 and not any(spoiled for _, spoiled in seen):
        return
    words = [
        f"rank {rank} was aborted while its GPU ran step {done}" if spoiled else f"rank {rank} has finished step {done}"
        for rank, (done, spoiled) in enumerate(seen)
    ]
    last = min(done - spoiled for done, spoiled in seen)
    raise InterruptedStepError(
        f"{'; '.join(words)}: parameters are of different steps. The last step that all finished is {last}: load what "
        "you saved at or before it, or build the model again, and compile the step again"
    )
