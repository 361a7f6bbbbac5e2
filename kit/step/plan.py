"""Read a step's Plan off its graph."""

from collections.abc import Sequence

from torch.fx import GraphModule, Node

from kit._torch import collectives
from kit.step.inputs import Inputs
from kit.step.passes.chains import positions
from kit.step.record import Plan, Send
from kit.step.trace import rows_of


def plan_of(
    module: GraphModule,
    inputs: Inputs,
    *,
    strategy: str,
    world_size: int,
    passes: Sequence[str],
    unused: Sequence[str],
) -> Plan:
    """The plan of a step's graph."""
    return Plan(
        strategy=strategy,
        world_size=world_size,
        passes=tuple(passes),
        micro_batch_rows=tuple(rows_of(batch) for batch in inputs.window),
        sends=tuple(_sends(module)),
        node_count=len(module.graph.nodes),
        parameter_bytes=sum(slot.local.nbytes for slot in inputs.slots),
        state_bytes=sum(tensor.nbytes for state in inputs.states for tensor in state.values()),
        unused=tuple(unused),
    )


def _sends(module: GraphModule) -> list[Send]:
    place = positions(module.graph)
    compute = [place[node] for node in module.graph.nodes if _computes(node)]
    sends: list[Send] = []
    previous = -1
    for node in module.graph.nodes:
        if not collectives.is_collective(node.target):
            continue
        waits = [place[user] for user in node.users]
        value = node.args[0].meta["val"]
        custom = node.meta.get("custom", {})
        sends.append(
            Send(
                name=str(node.target).split(".")[1],
                phase=custom.get("kit_phase", ""),
                group=str(node.args[-1]),
                bytes_in=value.numel() * value.element_size(),
                dtype=str(value.dtype).removeprefix("torch."),
                nodes_before=sum(previous < p < place[node] for p in compute),
                nodes_hiding=sum(place[node] < p < min(waits, default=place[node]) for p in compute),
                module=custom.get("kit_module", ""),
                source=custom.get("kit_source", ""),
            )
        )
        previous = place[node]
    return sends


def _computes(node: Node) -> bool:
    return (
        node.op == "call_function"
        and not collectives.is_collective(node.target)
        and node.target is not collectives.WAIT
        and getattr(node.target, "__name__", "") != "getitem"
    )
