"""Read a step's Plan off its graph."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from kit._torch import collectives, trees
from kit.step.inputs import Inputs
from kit.step.mesh import Axes
from kit.step.passes.chains import positions
from kit.step.record import Plan, Send
from kit.step.rules import carried, findings_of
from kit.step.trace import rows_of


def plan_of(
    module: GraphModule,
    inputs: Inputs,
    *,
    strategy: str,
    axes: Axes,
    passes: Sequence[str],
    unused: Sequence[str],
) -> Plan:
    """The plan of a step's graph, with what the rules of its order say of it."""
    names = inputs.names()
    inside = () if inputs.eager_reason else inputs.groups  # what an optimizer does after the graph is not in its order
    updated = {names[row] for group in inside for row in group.slot_rows} - set(unused)
    trained = [slot.name for slot in inputs.slots if slot.name in updated]
    groups = {axis.group: axis.size for axis in axes.data}  # over which a gradient is summed; a tensor axis only splits
    return Plan(
        strategy=strategy,
        world_size=axes.ranks,
        passes=tuple(passes),
        micro_batch_rows=tuple(rows_of(batch) for batch in inputs.window),
        sends=tuple(_sends(module, dict(axes.names))),
        node_count=len(module.graph.nodes),
        parameter_bytes=sum(slot.local.nbytes for slot in inputs.slots),
        state_bytes=sum(tensor.nbytes for state in inputs.states for tensor in state.values()),
        unused=tuple(unused),
        findings=findings_of(module, inputs=names, trained=trained, groups=groups),
    )


def _sends(module: GraphModule, ranks_of_group: dict[str, int]) -> list[Send]:
    place = positions(module.graph)
    compute = [place[node] for node in module.graph.nodes if _computes(node)]
    sends: list[Send] = []
    previous = -1
    for node in module.graph.nodes:
        if not collectives.is_started(node.target):
            continue
        waits = [place[user] for user in node.users]
        values = _tensors(node.args[0])
        custom = node.meta.get("custom", {})
        sends.append(
            Send(
                name=str(node.target).split(".")[1],
                phase=custom.get("kit_phase", ""),
                group=str(node.args[-1]),
                bytes_in=sum(value.numel() * value.element_size() for value in values),
                dtype=str(values[0].dtype).removeprefix("torch."),
                nodes_before=sum(previous < p < place[node] for p in compute),
                nodes_hiding=sum(place[node] < p < min(waits, default=place[node]) for p in compute),
                module=custom.get("kit_module", ""),
                source=custom.get("kit_source", ""),
                parameters=carried(node),
                ranks=ranks_of_group.get(str(node.args[-1]), 1),
            )
        )
        previous = place[node]
    return sends


def _tensors(argument: Any) -> list[torch.Tensor]:
    """The tensors that a collective puts in: one, or a list of a coalesced one."""
    nodes = [leaf for leaf in trees.leaves(argument) if isinstance(leaf, Node)]
    return [node.meta["val"] for node in nodes]


def _computes(node: Node) -> bool:
    return (
        node.op == "call_function"
        and not collectives.is_started(node.target)
        and node.target is not collectives.WAIT
        and getattr(node.target, "__name__", "") != "getitem"
    )
