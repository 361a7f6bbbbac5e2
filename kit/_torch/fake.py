"""Fake tensors: values with shape, dtype and storage but no memory.

torch keeps `FakeTensorMode` and the identity of a storage under private names; the graph room needs
both to price a node without running it and to tell which values share memory.
Seen on 2.11 to 2.13: `torch._subclasses.FakeTensorMode`, `FakeTensor.fake_mode`, `UntypedStorage._cdata`,
`SymNode.hint`.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, cast

import torch

try:
    from torch._subclasses import FakeTensor, FakeTensorMode
    from torch._subclasses.fake_tensor import unset_fake_temporarily
except ImportError as error:
    raise ImportError(
        f"torch {torch.__version__} has no torch._subclasses.FakeTensorMode; the kit was seen to work with "
        "torch 2.11 to 2.13, install one of these"
    ) from error


def fake_mode_of(values: Iterable[object]) -> FakeTensorMode:
    """The mode that the first fake tensor among `values` belongs to, or a new one when there is none."""
    for value in values:
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return FakeTensorMode(allow_non_fake_inputs=True)


def as_fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` without its memory; a tensor that is fake already is returned as it is."""
    if isinstance(tensor, FakeTensor):
        return tensor
    return cast(torch.Tensor, mode.from_tensor(tensor, static_shapes=True))


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no memory."""
    return isinstance(tensor, FakeTensor)


def running_fake(mode: FakeTensorMode) -> AbstractContextManager[Any]:
    """A context in which operators run on fake tensors only, real constants allowed."""
    return cast(AbstractContextManager[Any], mode)


def running_real() -> AbstractContextManager[Any]:
    """A context in which operators run on real tensors, inside `running_fake` too."""
    return cast(AbstractContextManager[Any], unset_fake_temporarily())


def storage_identity(tensor: torch.Tensor) -> int:
    """A number that two tensors share exactly when they share memory, while both are alive."""
    return cast(int, tensor.untyped_storage()._cdata)


def is_known(size: Any) -> bool:
    """Whether a size is a number or was traced with an example; False when only a run can tell."""
    return isinstance(size, int) or _hint(size) is not None


def hint_of(size: Any) -> int:
    """The plain number of a size; of a symbolic size the example it was traced with.

    Raises `ValueError` when `is_known(size)` is False.
    """
    if isinstance(size, int):
        return size
    hint = _hint(size)
    if hint is None:
        raise ValueError(f"size {size} is known only when the graph runs; expected a fixed shape")
    return int(hint)


def _hint(size: Any) -> int | None:
    # `.hint` of an unbacked symbol is None on 2.13 and may raise on others.
    node = getattr(size, "node", None)
    if node is None or not node.has_hint():
        return None
    return int(node.hint)
