"""Free gathered parameters after the forward and gather them again for the backward.

The trace gathers each parameter once and the backward reads that value, so it would live through
the whole step. Here each part of the step that reads it (forward or backward of one micro-batch)
gets its own gather, and only views of the gathered value are made again with it.
"""

from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch.fx import GraphModule, Node

from kit._torch import collectives
from kit.step.passes.chains import chains_of

aten: Any = torch.ops.aten

# Operators whose output is the gathered parameter in another form and costs nothing to make again.
FORMS = (
    aten.reshape.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.slice.Tensor,
    aten.t.default,
    aten.transpose.int,
    aten.permute.default,
    aten.unsqueeze.default,
    aten.detach.default,
    aten.alias.default,
    aten.expand.default,
)


def reshard_after_forward(module: GraphModule) -> None:
    """Give the backward gathers of its own."""
    segment_of = segment_numbers(module)
    for chain in chains_of(module, collectives.ALL_GATHER):
        _split_users(module, [chain.start, chain.wait], segment_of, packed=chain.source)


def segment_numbers(module: GraphModule) -> dict[Node, int]:
    """Number of each node's part of the step: it grows where forward turns into backward or back."""
    number, backward = 0, False
    segment_of: dict[Node, int] = {}
    for node in module.graph.nodes:
        phase = node.meta.get("custom", {}).get("kit_phase")
        if phase is not None and (phase == "backward") is not backward:
            number, backward = number + 1, not backward
        segment_of[node] = number
    return segment_of


def _split_users(module: GraphModule, gather: list[Node], segment_of: dict[Node, int], packed: Node) -> None:
    graph = module.graph
    forms = _forms_of(gather[-1])
    own = [*([packed] if packed.op != "placeholder" else []), *gather, *forms]
    readers = {user for form in (gather[-1], *forms) for user in form.users} - set(own)
    segments = [list(members) for _, members in groupby(sorted(readers), key=segment_of.__getitem__)]
    for segment in segments[1:]:
        copies: dict[Node, Node] = {}
        with graph.inserting_before(segment[0]):
            for node in own:
                copies[node] = graph.node_copy(node, partial(_instead, copies))
                if _is_backward(segment[0]):
                    copies[node].meta["custom"] = {**node.meta.get("custom", {}), "kit_phase": "backward"}
        for user in segment:
            for form in list(user.all_input_nodes):
                if form in copies:
                    user.replace_input_with(form, copies[form])


def _instead(copies: dict[Node, Node], node: Node) -> Node:
    return copies.get(node, node)


def _forms_of(wait: Node) -> list[Node]:
    """Views and unpackings of a gathered value, in execution order."""
    found: set[Node] = set()
    open_nodes = [wait]
    while open_nodes:
        for user in open_nodes.pop().users:
            if user.target in FORMS and user not in found:
                found.add(user)
                open_nodes.append(user)
    return sorted(found)


def _is_backward(node: Node) -> bool:
    return bool(node.meta.get("custom", {}).get("kit_phase") == "backward")
