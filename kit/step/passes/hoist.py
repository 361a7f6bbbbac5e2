"""Move what prepares a reduction (a cast, padding, the sum over micro-batches) up to its data.

The trace makes these after the whole backward; left there, no reduction could start before the
backward is over.
"""

from typing import Any

import torch
from torch.fx import GraphModule, Node

from kit._torch import collectives
from kit.step.passes.chains import chains_of, positions

aten: Any = torch.ops.aten

_PREPARES = (
    aten._to_copy.default,
    aten.add.Tensor,
    aten.clone.default,
    aten.constant_pad_nd.default,
    aten.reshape.default,
    aten.view.default,
)


def hoist_preparations(module: GraphModule) -> None:
    """Put each node that only prepares a reduction right behind the last of its inputs."""
    place: dict[Node, float] = {node: float(number) for node, number in positions(module.graph).items()}
    for target in (collectives.ALL_REDUCE, collectives.REDUCE_SCATTER):
        for chain in chains_of(module, target):
            for step, node in enumerate(reversed(_preparations(chain.source)), 1):
                latest = max(node.all_input_nodes, key=place.__getitem__)
                if latest.op != "placeholder":
                    latest.append(node)
                    place[node] = place[latest] + 1e-3 * step / (len(place) + 1)


def _preparations(source: Node) -> list[Node]:
    """`source` and what it alone is made of, nearest first; empty when it is no mere preparation."""
    found: list[Node] = []
    open_nodes = [source]
    while open_nodes:
        node = open_nodes.pop(0)
        if node.target in _PREPARES and len(node.users) == 1 and node not in found and len(found) < 8:
            found.append(node)
            open_nodes.extend(node.all_input_nodes)
    return found
