"""Activation checkpointing by module path: keep a module's inputs, compute its inside again.

The module is run through `torch.utils.checkpoint` while the step is traced, so the graph's backward
holds the recomputed operators like any others. Random operators inside would draw other numbers the
second time and are refused.
"""

import fnmatch
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from kit.step.provenance import watch_again


class CheckpointError(ValueError):
    """Checkpointing that names no module, or one that cannot be computed again."""


@contextmanager
def checkpointed(model: nn.Module, patterns: Sequence[str]) -> Iterator[None]:
    """Within the block, modules whose path matches a pattern (`blocks.*`) are checkpointed.

    A module inside another that matches is left to the outer one. Raises `CheckpointError`.
    """
    chosen = _outermost(model, patterns)
    for path, module in chosen:
        _refuse_dropout(path, module)
    try:
        for path, module in chosen:
            module.forward = _twice(model, path, module.forward)
        yield
    finally:
        for _, module in chosen:
            module.__dict__.pop("forward", None)


def _twice(model: nn.Module, path: str, forward: Any) -> Any:
    """`forward` checkpointed; what its second run makes is noted as computed again."""

    def run(*args: Any, **kwargs: Any) -> Any:
        turns = itertools.count()

        def turn(*args: Any, **kwargs: Any) -> Any:
            with watch_again(model, path) if next(turns) else nullcontext():
                return forward(*args, **kwargs)

        return checkpoint(turn, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return run


def _outermost(model: nn.Module, patterns: Sequence[str]) -> list[tuple[str, nn.Module]]:
    paths = [path for path, _ in model.named_modules() if path]
    for pattern in patterns:
        if not fnmatch.filter(paths, pattern):
            raise CheckpointError(
                f"checkpointing pattern {pattern!r} matches no module; the model has {', '.join(paths[:12])}"
                f"{', ...' if len(paths) > 12 else ''}"
            )
    chosen: list[tuple[str, nn.Module]] = []
    for path, module in model.named_modules():
        matches = path and any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)
        inside = any(path.startswith(outer + ".") for outer, _ in chosen)
        if matches and not inside:
            chosen.append((path, module))
    return chosen


def _refuse_dropout(path: str, module: nn.Module) -> None:
    for name, part in module.named_modules():
        probability = getattr(part, "p", getattr(part, "dropout", 0.0))
        is_random = "dropout" in type(part).__name__.lower() or isinstance(part, nn.RNNBase | nn.MultiheadAttention)
        if is_random and part.training and isinstance(probability, float) and probability > 0:
            raise CheckpointError(
                f"{path}{'.' + name if name else ''} draws random numbers (p={probability}); computed again it would "
                "draw others. Leave its module out of checkpointing=, or set its probability to 0"
            )
