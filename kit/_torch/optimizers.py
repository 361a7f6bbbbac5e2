"""What torch.optim keeps under private names. Seen on 2.11 to 2.13.

`_opt_called` (schedulers look for it), `_is_compiling_flag` (with it an optimizer keeps its step count a
tensor, as torch.compile needs it) and the profiler's wrapper that `Optimizer.__init__` puts around `step`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.optim import Optimizer


def note_step(optimizer: Optimizer) -> None:
    """Let schedulers know that a step was taken: they warn when `optimizer.step` itself was never called."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


@contextmanager
def traceable_step(kind: type[Optimizer]) -> Iterator[None]:
    """In the block `kind.step` keeps tensors tensors and enters no profiler region (nor calls step hooks)."""
    flag = torch.compiler._is_compiling_flag
    wrapped = {cls: cls.__dict__["step"] for cls in kind.__mro__ if getattr(cls.__dict__.get("step"), "hooked", False)}
    torch.compiler._is_compiling_flag = True
    try:
        for cls, step in wrapped.items():
            cls.step = step.__wrapped__  # type: ignore[attr-defined]
        yield
    finally:
        torch.compiler._is_compiling_flag = flag
        for cls, step in wrapped.items():
            cls.step = step  # type: ignore[attr-defined]


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Whether functions of the user are to be called around each step."""
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)
