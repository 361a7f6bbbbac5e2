"""Start each gather while the one before it is being used, so that computation hides it.

After bucketing a gather starts right where it is first needed. Here its start moves up to the start
of the gather before it: the two are in flight or in use together, never more, which bounds the
memory to one bucket more.
"""

from itertools import pairwise

from torch.fx import GraphModule, Node

from kit._torch import collectives
from kit.step.passes.chains import chains_of, positions


def start_gathers_early(module: GraphModule) -> None:
    """Move each all-gather, with what packs it, to right behind the start of the one before."""
    place = positions(module.graph)
    chains = sorted(chains_of(module, collectives.ALL_GATHER), key=lambda chain: place[chain.start])
    for before, chain in pairwise(chains):
        packing = _packing(chain.start)
        if packing is None:
            continue
        place = positions(module.graph)
        anchor = before.start
        late = [node for node in packing if place[node] > place[anchor]]
        for node in sorted(late, key=place.__getitem__):
            anchor.append(node)
            anchor = node


def _packing(start: Node) -> set[Node] | None:
    """The collective and the nodes that make its input out of graph inputs; None when more is needed."""
    found: set[Node] = {start}
    open_nodes = list(start.all_input_nodes)
    while open_nodes:
        node = open_nodes.pop()
        if node.op == "placeholder" or node in found:
            continue
        if node.op != "call_function" or node.target is collectives.WAIT:
            return None
        found.add(node)
        open_nodes.extend(node.all_input_nodes)
    return found
