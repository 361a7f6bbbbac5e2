"""What tensor parallelism does to one module, as plain values.

A style is written as a string, or as one of torch's own `torch.distributed.tensor.parallel` objects, which
are read and not used: theirs work on DTensors, ours on local tensors.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

# The dim that a tensor is sharded over along the tensor axis; None: every rank holds the whole.
Layout = int | None
# (what a value is, what it shall become); None leaves a value as it is.
Change = tuple[Layout, Layout] | None

Kind = Literal["colwise", "rowwise", "sequence", "convert"]
SEQUENCE_DIM = 1  # [batch, sequence, hidden], as torch's SequenceParallel has it


class StyleError(ValueError):
    """A tensor-parallel style that does not exist, or one that has no static form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How one module takes part.

    `kind`: "colwise" splits the weight's output features (an embedding's columns), "rowwise" its input features (an
    embedding's rows), "sequence" keeps parameters whole and runs on a part of the sequence, "convert" changes only
    what goes in and out. `takes`, `gives`: what becomes of positional inputs and of outputs; `named` of keyword inputs.
    """

    kind: Kind
    takes: tuple[Change, ...] = ()
    gives: tuple[Change, ...] = ()
    named: tuple[tuple[str, Change], ...] = ()

    @property
    def sums_sequence(self) -> bool:
        """Whether parameters that stay whole see a part of the sequence, so that their gradients must be summed."""
        return self.kind == "sequence" or (self.kind == "rowwise" and self.gives != ((None, None),))


def _colwise(taken: Layout, given: Layout) -> Style:
    return Style(kind="colwise", takes=((taken, None),), gives=((-1, given),))


def _rowwise(taken: Layout, given: Layout) -> Style:
    return Style(kind="rowwise", takes=((taken, -1),), gives=((None, given),))


def _named_styles(between: Layout) -> dict[str, Style]:
    """The styles by name; `between`: how activations are kept between the split modules."""
    return {
        "colwise": _colwise(between, -1),
        "rowwise": _rowwise(-1, between),
        "colwise_rep": _colwise(between, None),
        "rowwise_rep": _rowwise(None, between),
        "sequence": Style(kind="sequence"),
        "split_input": Style(kind="convert", takes=((None, SEQUENCE_DIM),)),
        "gather_output": Style(kind="convert", gives=((SEQUENCE_DIM, None),)),
    }


def style_of(choice: Any, *, sequence_parallel: bool) -> Style:
    """The style that a string, a torch style object or a `Style` means. Raises `StyleError` that lists them."""
    if isinstance(choice, Style):
        return choice
    if isinstance(choice, str):
        known = _named_styles(SEQUENCE_DIM if sequence_parallel else None)
        if choice in known:
            return known[choice]
    elif type(choice).__name__ in _FROM_TORCH:
        return _FROM_TORCH[type(choice).__name__](choice)
    names = ", ".join(map(repr, _named_styles(None)))
    raise StyleError(
        f"style {choice!r} is not known; expected one of {names}, or one of {', '.join(_FROM_TORCH)} of "
        "torch.distributed.tensor.parallel"
    )


def _layout(placement: Any) -> Layout:
    name = type(placement).__name__
    if name == "Replicate":
        return None
    if name == "Shard":
        return int(placement.dim)
    raise StyleError(f"layout {placement!r} has no static form; expected Replicate() or Shard(dim)")


def _changes(have: Iterable[Any] | None, want: Iterable[Any] | None) -> tuple[Change, ...]:
    pairs = zip(have or (), want or (), strict=True)
    return tuple(None if a is None or b is None else (_layout(a), _layout(b)) for a, b in pairs)


def _changes_by_name(have: Mapping[str, Any], want: Mapping[str, Any]) -> tuple[tuple[str, Change], ...]:
    return tuple((name, _changes([have[name]], [want.get(name)])[0]) for name in have)


def _prepared(inputs: Any = None, outputs: Any = None) -> Style:
    """PrepareModuleInput, PrepareModuleOutput or both."""
    return Style(
        kind="convert",
        takes=_changes(inputs.input_layouts, inputs.desired_input_layouts) if inputs is not None else (),
        named=_changes_by_name(inputs.input_kwarg_layouts, inputs.desired_input_kwarg_layouts)
        if inputs is not None
        else (),
        gives=_changes(outputs.output_layouts, outputs.desired_output_layouts) if outputs is not None else (),
    )


_FROM_TORCH: dict[str, Callable[[Any], Style]] = {
    "ColwiseParallel": lambda s: _colwise(_layout(s.input_layouts[0]), _layout(s.output_layouts[0])),
    "RowwiseParallel": lambda s: _rowwise(_layout(s.input_layouts[0]), _layout(s.output_layouts[0])),
    "SequenceParallel": lambda s: Style(kind="sequence"),
    "PrepareModuleInput": lambda s: _prepared(inputs=s),
    "PrepareModuleOutput": lambda s: _prepared(outputs=s),
    "PrepareModuleInputOutput": lambda s: _prepared(s.prepare_module_input, s.prepare_module_output),
}
