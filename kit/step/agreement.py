"""Ranks compare their graphs before they run them.

A rank whose graph differs would wait for a collective that the others never start; the difference
is found here, where it can still be named.
"""

import hashlib

import torch
import torch.distributed as dist
from torch.fx import GraphModule, Node

from kit.step.mesh import Axis


class DisagreementError(RuntimeError):
    """Ranks traced different graphs."""


def require_same_graph(module: GraphModule, axis: Axis) -> None:
    """Raise `DisagreementError` on all ranks when the graphs differ. A collective call."""
    lines = [_line(node) for node in module.graph.nodes]
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


def _line(node: Node) -> str:
    """A node without its metadata: name, target, arguments, shape."""
    value = node.meta.get("val")
    shape = f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else ""
    return f"{node} = {node.target}{node.args} {shape}"
