"""Recognise a node that only copies: whose values are those of an earlier node, in fresh memory.

Told from operators and arguments; whether anybody changes either of the two is `memory`'s question.
"""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

aten: Any = torch.ops.aten

_PLAIN = (aten.clone.default, aten.lift_fresh_copy.default)

# Formats that hold every value of a narrower one, so that a cast there and back loses nothing.
_WIDER = {
    torch.bfloat16: (torch.float32, torch.float64),
    torch.float16: (torch.float32, torch.float64),
    torch.float32: (torch.float64,),
    torch.int32: (torch.int64, torch.float64),
}


class Copied(NamedTuple):
    """The node whose values are copied, and the node that read them."""

    source: Node
    read_by: Node


def copied(node: Node) -> Copied | None:
    """What `node` copies, or None when it computes something; the shape and strides may still differ."""
    if node.target in _PLAIN:
        return _from(node, node.args[0])
    if node.target is aten.constant_pad_nd.default and not any(node.args[1]):  # type: ignore[arg-type]
        return _from(node, node.args[0])
    if node.target is aten._to_copy.default and not node.kwargs.get("pin_memory"):
        return _cast(node)
    if node.target is aten.cat.default:
        return _joined(node, aten.split.Tensor, aten.split_with_sizes.default)
    if node.target is aten.stack.default:
        return _joined(node, aten.unbind.int)
    return None


def _from(node: Node, source: Any) -> Copied | None:
    return Copied(source, node) if isinstance(source, Node) else None


def _cast(node: Node) -> Copied | None:
    """A cast to the format that is there, or back from a wider one."""
    source, dtype = node.args[0], node.meta["val"].dtype
    if not isinstance(source, Node):
        return None
    if source.meta["val"].dtype == dtype:
        return Copied(source, node)
    origin = source.args[0] if source.target is aten._to_copy.default else None
    if not isinstance(origin, Node) or origin.meta["val"].dtype != dtype:
        return None
    return Copied(origin, source) if source.meta["val"].dtype in _WIDER.get(dtype, ()) else None


def _joined(node: Node, *splits: Any) -> Copied | None:
    """A `cat` of one tensor, or pieces put together again as they were taken apart."""
    parts: Sequence[Any] = node.args[0]  # type: ignore[assignment]
    dim = _dim(node, node)
    if len(parts) == 1 and node.target is aten.cat.default:
        return _from(node, parts[0])
    whole = _taken_apart(parts, splits, dim) or _sliced(parts, dim)
    return None if whole is None or whole.meta["val"].shape != node.meta["val"].shape else Copied(whole, node)


def _taken_apart(parts: Sequence[Any], splits: Sequence[Any], dim: int) -> Node | None:
    first = parts[0].args[0] if isinstance(parts[0], Node) and parts[0].target is operator.getitem else None
    if not isinstance(first, Node) or first.target not in splits or _dim(first, first.args[0]) != dim:
        return None
    pieces = first.meta["val"]
    in_order = [(part.target, part.args) for part in parts if isinstance(part, Node)]
    if in_order != [(operator.getitem, (first, number)) for number in range(len(pieces))]:
        return None
    source = first.args[0]
    return source if isinstance(source, Node) else None


def _sliced(parts: Sequence[Any], dim: int) -> Node | None:
    """The tensor that neighbouring slices, first to last, were cut from."""
    whole, at = None, 0
    for part in parts:
        if not isinstance(part, Node) or part.target is not aten.slice.Tensor:
            return None
        source, along, begin, end = part.args if len(part.args) == 4 else (None, 0, 0, 0)
        if not isinstance(source, Node) or source is not (whole or source) or begin != at:
            return None
        shape = source.meta["val"].shape
        if not isinstance(along, int) or along % len(shape) != dim or not isinstance(end, int) or end < 0:
            return None
        whole, at = source, min(end, shape[dim])
    return whole if whole is not None and at == whole.meta["val"].shape[dim] else None


def _dim(node: Node, shaped: Any) -> int:
    """The dim that a cat, stack, split or unbind works along, counted from the front."""
    place = {aten.split.Tensor: 2, aten.split_with_sizes.default: 2}.get(node.target, 1)
    dim = node.args[place] if len(node.args) > place else node.kwargs.get("dim", 0)
    rank: int = shaped.meta["val"].dim()
    return int(dim) % rank  # type: ignore[arg-type]
