"""Ranks compare their graphs before they run them.

A rank whose graph differs would wait for a collective that the others never start; the difference
is found here, where it can still be named.
"""

import hashlib
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from kit._torch.collectives import is_collective
from kit.step.mesh import Axes, Axis


class DisagreementError(RuntimeError):
    """Ranks traced different graphs."""


def require_same_graph(module: GraphModule, axes: Axes) -> None:
    """Raise `DisagreementError` when the graphs of ranks that meet in a collective differ. A collective call."""
    lines = lines_of(module, {axis.group: f"axis {number}" for number, axis in enumerate(axes)})
    for axis in axes:
        _compare(lines, axis)


def lines_of(module: GraphModule, roles: dict[str, str]) -> list[str]:
    """What ranks compare, node by node; `roles`: what each group's name stands for, which differs between ranks.

    A node goes by its place, not by its name: torch numbers names, and counts nodes that were traced and dropped.
    """
    places = {node: f"%{number}" for number, node in enumerate(module.graph.nodes)}
    return [_line(node, roles, places) for node in module.graph.nodes]


def named_by_any(names: Iterable[str], axes: Axes) -> set[str]:
    """The names that any rank gives. A collective call."""
    found = set(names)
    for axis in axes:
        everybody: list[set[str]] = [set() for _ in range(axis.size)]
        dist.all_gather_object(everybody, found, group=axis.mesh.get_group())
        found = set().union(*everybody)
    return found


def _compare(lines: list[str], axis: Axis) -> None:
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    group = axis.mesh.get_group()
    digests: list[str] = [""] * axis.size
    dist.all_gather_object(digests, digest, group=group)
    if len(set(digests)) == 1:
        return
    everybody: list[list[str]] = [[] for _ in range(axis.size)]
    dist.all_gather_object(everybody, lines, group=group)
    longest = max(map(len, everybody))
    padded = [one + ["(no more nodes)"] * (longest - len(one)) for one in everybody]
    row = next(i for i in range(longest) if len({one[i] for one in padded}) > 1)
    seen = "; ".join(f"rank {rank}: {one[row]}" for rank, one in enumerate(padded))
    raise DisagreementError(
        f"ranks traced different graphs, first at node {row}: {seen}. Every rank must build the same model and pass "
        "batches of the same shape and dtype"
    )


def _line(node: Node, roles: dict[str, str], places: dict[Node, str]) -> str:
    """A node without its metadata: place, target, arguments, shape. Groups go by axis."""
    value = node.meta.get("val")
    shape = f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else ""
    args = node.args
    if is_collective(node.target):
        args = (*args[:-1], roles.get(str(args[-1]), args[-1]))
    return f"{places[node]} = {node.target}{map_arg(args, places.__getitem__)} {shape}"
