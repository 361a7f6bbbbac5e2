"""Nested batches as leaves and back: torch's pytree, which is not public. Seen on 2.11 to 2.13."""

from collections.abc import Callable
from typing import Any

from torch.utils import _pytree


def leaves(tree: Any) -> list[Any]:
    """The leaves of nested tuples, lists and dicts, in a fixed order."""
    return _pytree.tree_leaves(tree)


def structure(tree: Any) -> str:
    """The nesting as text, equal for trees of the same form."""
    return str(_pytree.tree_structure(tree))


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same nesting with `function` applied to each leaf."""
    return _pytree.tree_map(function, tree)
