"""How a step computes, beside its strategy: number formats, clipping, what is computed twice."""

from collections.abc import Sequence
from dataclasses import dataclass

from kit.step.precision import Precision, precision_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a step computes, beside its strategy.

    `clip_norm`: largest norm of the gradient over all parameters. `checkpointing`: patterns of module
    paths (`blocks.*`) whose activations are computed again in the backward instead of kept.
    """

    precision: Precision | None = None
    clip_norm: float | None = None
    checkpointing: tuple[str, ...] = ()


def recipe_of(precision: str | Precision | None, clip_norm: float | None, checkpointing: str | Sequence[str]) -> Recipe:
    """The recipe that the options of `compile_step` mean. Raises `PrecisionError`, `ValueError`."""
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"clip_norm is {clip_norm}, expected a number above 0 or None for no clipping")
    patterns = (checkpointing,) if isinstance(checkpointing, str) else tuple(checkpointing)
    return Recipe(precision=precision_of(precision), clip_norm=clip_norm, checkpointing=patterns)
