"""Which number format a step computes and reduces in; parameters are kept in their own."""

from dataclasses import dataclass

_FLOATS = ("float64", "float32", "bfloat16", "float16")


class PrecisionError(ValueError):
    """A precision that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Compute in `compute`, reduce gradients in `reduce`; both names of torch's floating formats.

    Parameters and optimizer state stay in the format they have (the master copy). Floating inputs of
    the model are cast too; what the loss computes from its output is the user's own.
    """

    compute: str
    reduce: str

    def __post_init__(self) -> None:
        for name in (self.compute, self.reduce):
            if name not in _FLOATS:
                raise PrecisionError(
                    f"precision {name!r} is not known; expected one of {', '.join(map(repr, _FLOATS))}"
                )


BY_NAME = {
    "bf16": Precision(compute="bfloat16", reduce="float32"),
    "pure_bf16": Precision(compute="bfloat16", reduce="bfloat16"),
    "fp16": Precision(compute="float16", reduce="float32"),
}


def precision_of(choice: "str | Precision | None") -> Precision | None:
    """The precision that a name or an object means; None keeps the parameters' own format.

    Raises `PrecisionError` that lists the names.
    """
    if choice is None or isinstance(choice, Precision):
        return choice
    if choice in BY_NAME:
        return BY_NAME[choice]
    raise PrecisionError(
        f"precision {choice!r} is not known; expected None, one of {', '.join(map(repr, BY_NAME))}, or "
        "kit.Precision(compute='bfloat16', reduce='float32')"
    )
