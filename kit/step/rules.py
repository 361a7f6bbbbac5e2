"""The rules of a step's order, held against its graph: what was proved of how many values, and where it breaks.

A rewrite of the graph may move, merge or repeat nodes; these are the things it must leave true. They are read from the
flow of values (in-place writes included), not from what a pass says it did.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from kit._torch import collectives
from kit._torch.schema import namespace_and_name
from kit.step.flow import Flow, flow_of
from kit.step.provenance import AGAIN, CARRIES, PHASES
from kit.step.record import Breach, Finding, Place
from kit.step.reductions import (
    Histories,
    custom,
    histories_of,
    is_sum_of_the_step,
    path_back,
    scale_back,
    sums_before,
)

EXISTS = "a value exists and has arrived before it is read"
RECOMPUTE = "recompute precedes its gradient"
ONCE = "each gradient is reduced once over each of its groups"
BEFORE_UPDATE = "reduction precedes update"
NEXT_GATHER = "update precedes the next gather"
LONGEST_PATH = 12
_PACKS = ("cat", "reshape", "view")  # how a bucket is put together


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Graph:
    """A graph with what every rule needs of it.

    Of each parameter `trained` has the input that holds it, `sums` the reductions that carry its gradient.
    """

    flow: Flow
    place: Mapping[Node, int]
    histories: list[Histories]
    groups: Mapping[str, int]
    trained: Mapping[str, Node]
    sums: Mapping[str, list[Node]]


def findings_of(
    module: GraphModule, *, inputs: Sequence[str], trained: Sequence[str], groups: Mapping[str, int]
) -> tuple[Finding, ...]:
    """What each rule says of a step's graph.

    `inputs`: names of the graph's inputs, in order; gradients that come in after them have none.
    `trained`: the parameters that the step updates.
    `groups`: name and ranks of each data-parallel group, over all of which a gradient is to be summed.
    """
    flow = flow_of(module)
    nodes = list(module.graph.nodes)
    holders = dict(zip(inputs, (node for node in nodes if node.op == "placeholder"), strict=False))
    sums: dict[str, list[Node]] = {}
    for node in filter(is_sum_of_the_step, nodes):
        for name in carried(node):
            sums.setdefault(name, []).append(node)
    graph = _Graph(
        flow=flow,
        sums=sums,
        place={node: number for number, node in enumerate(nodes)},
        histories=histories_of(flow, frozenset(groups)),
        groups=groups,
        trained={name: holders[name] for name in trained},
    )
    rules: tuple[Callable[[_Graph], Finding], ...] = (_exists, _recompute, _once, _before_update, _next_gather)
    return tuple(rule(graph) for rule in rules)


def _exists(graph: _Graph) -> Finding:
    flow = graph.flow
    breaches = []
    for reader, used in flow.early:
        what = f"{reader.name} reads {used.name} at node {graph.place[reader]}, which is made at {graph.place[used]}"
        breaches.append(_breach(what, _story(used, reader)))
    for reader, used in flow.unwaited:
        breaches.append(_breach(f"{reader.name} reads {used.name} without waiting for it", [used, reader]))
    return Finding(rule=EXISTS, proved=len(flow.versions) - len(breaches), breaches=tuple(breaches))


def _recompute(graph: _Graph) -> Finding:
    """Of values computed again (checkpointing) or gathered again (resharding) for the backward."""
    proved, breaches = 0, []
    for node in graph.place:
        if not _is_again(node):
            continue
        for reader in node.users:
            if custom(reader).get("kit_phase") != "backward" or AGAIN in custom(reader):
                continue
            if graph.place[node] < graph.place[reader]:
                proved += 1
            else:
                breaches.append(_breach(f"{reader.name} reads {node.name} before it is made again", [node, reader]))
    return Finding(rule=RECOMPUTE, proved=proved, breaches=tuple(breaches))


def _is_again(node: Node) -> bool:
    said = custom(node)
    gathered = node.target is collectives.WAIT and any(u.target is collectives.ALL_GATHER for u in node.all_input_nodes)
    return AGAIN in said or (gathered and said.get("kit_phase") == "backward")


def _once(graph: _Graph) -> Finding:
    proved, breaches = 0, []
    for name, holder in graph.trained.items():
        number = graph.flow.last[holder]
        found = [_wrong_history(graph, name, number), _wrong_scale(graph, name, number)]
        breaches += [breach for breach in found if breach is not None]
        proved += not any(found)
    return Finding(rule=ONCE, proved=proved, breaches=tuple(breaches))


def _wrong_history(graph: _Graph, name: str, number: int) -> Breach | None:
    """The breach of a parameter whose gradient is summed over a group not once, or never reaches it."""
    histories = sorted(graph.histories[number].of, key=len)
    if not histories:
        return _breach(f"no gradient reaches the update of {name}", [graph.flow.versions[number].node])
    for history in histories:
        counts = {group: history.count(group) for group in graph.groups}
        if any(count != 1 for count in counts.values()):
            said = ", ".join(f"{_times(count)} over group {group}" for group, count in counts.items() if count != 1)
            path = path_back(graph.flow, graph.histories, number, history, name)
            return _breach(f"the gradient of {name} is reduced {said}, expected once", path)
    return None


def _wrong_scale(graph: _Graph, name: str, number: int) -> Breach | None:
    """The breach of a parameter whose gradient is scaled by a value that ranks do not share."""
    for history in sorted(graph.histories[number].scales, key=len):
        missing = [group for group in graph.groups if group not in history]
        if missing:
            path = scale_back(graph.flow, graph.histories, number, history)
            return _breach(f"the gradient of {name} is scaled by a value not reduced over group {missing[0]}", path)
    return None


def _before_update(graph: _Graph) -> Finding:
    proved, breaches = 0, []
    for name, holder in graph.trained.items():
        write = graph.flow.first_write.get(holder)
        if write is None:
            breaches.append(_breach(f"{name} is never updated", [holder]))
            continue
        sums = list(sums_before(graph.flow, graph.flow.last[holder]))
        late = [node for node in graph.sums.get(name, ()) if graph.place[node] > graph.place[write]]
        if late:
            what = f"{name} is updated at node {graph.place[write]}, its reduction starts at {graph.place[late[0]]}"
            breaches.append(_breach(what, [write, late[0]]))
        elif graph.groups and not sums:
            path = [graph.flow.versions[graph.flow.last[holder]].node]
            breaches.append(_breach(f"{name} is updated from a gradient that no reduction precedes", path))
        elif graph.groups and not set(sums) & set(graph.sums.get(name, ())):
            what = f"{name} is updated from the reduction of {', '.join(carried(sums[0])) or 'another value'}"
            breaches.append(_breach(what, [sums[0], graph.flow.versions[graph.flow.last[holder]].node]))
        else:
            proved += 1
    return Finding(rule=BEFORE_UPDATE, proved=proved, breaches=tuple(breaches))


def _next_gather(graph: _Graph) -> Finding:
    """Forward and backward read a parameter before its update only; a gather after it belongs to the next step."""
    proved, breaches = 0, []
    for name, holder in graph.trained.items():
        write = graph.flow.first_write.get(holder)
        for reader in graph.flow.readers.get(holder, ()):
            is_gather = reader.target is collectives.ALL_GATHER
            if write is None or reader is write or not (is_gather or custom(reader).get("kit_phase") in PHASES):
                continue
            if graph.place[reader] < graph.place[write]:
                proved += 1
            else:
                verb = "gathered" if is_gather else "read"
                what = f"{name} is {verb} by {reader.name} after its update {write.name} in the same step"
                breaches.append(_breach(what, [write, reader]))
    return Finding(rule=NEXT_GATHER, proved=proved, breaches=tuple(breaches))


def carried(node: Node) -> tuple[str, ...]:
    """The parameters whose values or gradients a collective of the step carries, in the order packed."""
    names: dict[str, None] = {}
    open_nodes = [node]
    while open_nodes:
        node = open_nodes.pop()
        name = custom(node).get(CARRIES)
        if name is None:
            continue
        if len(node.all_input_nodes) < 2:  # what joins several tensors has the name of the first only
            names[name] = None
        if collectives.is_started(node.target) or namespace_and_name(node.target)[1] in _PACKS:
            open_nodes += reversed(node.all_input_nodes)
    return tuple(names)


def _story(used: Node, reader: Node) -> list[Node]:
    """A value that is read too early, after the nearest collective that it comes from where there is one."""
    after: dict[Node, Node] = {used: reader}
    open_nodes = deque([used])
    while open_nodes:
        node = open_nodes.popleft()
        if collectives.is_started(node.target):
            path = [node]
            while path[-1] is not reader:
                path.append(after[path[-1]])
            return path
        for before in node.all_input_nodes:
            if before not in after and before is not reader:
                after[before] = node
                open_nodes.append(before)
    return [used, reader]


def _times(count: int) -> str:
    return {0: "never", 2: "twice"}.get(count, f"{count} times")


def _breach(what: str, path: Sequence[Node]) -> Breach:
    """A breach with its path; of a long one both ends."""
    if len(path) > LONGEST_PATH:
        path = [*path[: LONGEST_PATH // 2], *path[-LONGEST_PATH // 2 :]]
    places = tuple(
        Place(
            node=node.name,
            target=str(node.target),
            phase=custom(node).get("kit_phase", ""),
            module=custom(node).get("kit_module", ""),
            source=custom(node).get("kit_source", ""),
        )
        for node in path
    )
    return Breach(what=what, path=places)
