"""Find collectives with their waits in a flat graph, and insert new nodes with their values.

A collective is two nodes, start and wait; passes move and merge them as one chain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from kit._torch import collectives
from kit.step.provenance import SENDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """One collective: the node that starts it, the node that waits for it, what it sends."""

    start: Node
    wait: Node
    source: Node

    @property
    def value(self) -> torch.Tensor:
        """The (fake) tensor that this rank puts in."""
        return self.source.meta["val"]  # type: ignore[no-any-return]

    @property
    def bytes_sent(self) -> int:
        """Bytes this rank puts in."""
        return self.value.numel() * self.value.element_size()

    @property
    def key(self) -> tuple[str, str]:
        """Chains with equal keys can share a packet: group and dtype."""
        return str(self.start.args[-1]), str(self.value.dtype)


def chains_of(module: GraphModule, target: object) -> list[Chain]:
    """The chains of one kind of collective that send parameters or gradients, in graph order.

    What a module sends inside its forward and backward (tensor parallel) is read at once, and stays where it is.
    """
    found = []
    for node in module.graph.nodes:
        if node.target is target and SENDS in node.meta.get("custom", {}):
            waits = [user for user in node.users if user.target is collectives.WAIT]
            if len(waits) == 1 and len(node.users) == 1:
                found.append(Chain(start=node, wait=waits[0], source=node.args[0]))
    return found


def positions(graph: Graph) -> dict[Node, int]:
    """Place of each node in execution order."""
    return {node: place for place, node in enumerate(graph.nodes)}


def add(graph: Graph, target: Any, *args: Any, like: Node, **kwargs: Any) -> Node:
    """A new call at the graph's insertion point; its value is computed on fake tensors.

    It carries the note (module, source line, phase) of `like`, which it stands for.
    """
    node = graph.call_function(target, args, kwargs)
    node.meta = {key: like.meta[key] for key in ("custom", "stack_trace") if key in like.meta}
    values = torch.fx.node.map_arg(args, lambda arg: arg.meta["val"])
    node.meta["val"] = target(*values, **kwargs)
    return node


def first_user(nodes: Sequence[Node]) -> Node:
    """The earliest node that reads any of `nodes`, as the graph is now: torch compares nodes by their order in it."""
    return min(user for node in nodes for user in node.users)
