"""Start each gather while the one before it is being used, so that computation hides it.

After bucketing a gather starts right where it is first needed. Here its start moves up to the wait
for the gather before it: the two are in flight or in use together, never more, which bounds the
memory to one bucket more. Where a backend cannot have two gathers in flight (gloo), the other pass
here makes sure that there never are.
"""

from itertools import pairwise

from torch.fx import GraphModule, Node

from kit._torch import collectives
from kit.step.passes.chains import chains_of, positions


def has_early_gathers(module: GraphModule) -> bool:
    """Whether there is a gather that may start while another is in flight."""
    return any(node.target is collectives.ALL_GATHER and _may_overlap(node) for node in module.graph.nodes)


def has_gathers_in_flight(module: GraphModule) -> bool:
    """Whether a gather that may not overlap starts before the one before it was waited for."""
    open_waits: set[Node] = set()
    for node in module.graph.nodes:
        if node.target is collectives.ALL_GATHER and not _may_overlap(node):
            if open_waits:
                return True
            open_waits = {user for user in node.users if user.target is collectives.WAIT}
        open_waits.discard(node)
    return False


def start_gathers_early(module: GraphModule) -> None:
    """Move each all-gather, with what packs it, to right before the wait of the gather before it."""
    place = positions(module.graph)
    every = [chain for chain in chains_of(module, collectives.ALL_GATHER) if _may_overlap(chain.start)]
    chains = sorted(every, key=lambda chain: place[chain.start])
    for before, chain in pairwise(chains):
        packing = _packing(chain.start)
        if packing is None:
            continue
        late = [node for node in packing if place[node] > place[before.wait]]
        for node in sorted(late, key=place.__getitem__):
            before.wait.prepend(node)


def _may_overlap(start: Node) -> bool:
    return collectives.gathers_may_overlap(str(start.args[-1]), start.meta["val"].device.type)


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


def wait_before_next_gather(module: GraphModule) -> None:
    """Move up each all-gather's wait that stands behind the start of another, the user's own gathers included."""
    open_waits: list[Node] = []
    for node in list(module.graph.nodes):
        if node.target is collectives.ALL_GATHER and not _may_overlap(node):
            for wait in open_waits:
                node.prepend(wait)
            open_waits = [user for user in node.users if user.target is collectives.WAIT]
        elif node in open_waits:
            open_waits.remove(node)
