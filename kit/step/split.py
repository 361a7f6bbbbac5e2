"""Split a flat graph of a forward and a backward into two graphs, with what passes from one to the other.

Each operation stays on its side and in its order, so what is kept for the backward is what eager autograd
keeps; views of inputs are made again, they cost nothing. torch's own partitioners are not used: they want a
functional graph and drop an update in place (BatchNorm's count) that no output depends on.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from torch.fx import Graph, GraphModule, Node

from kit.step.passes.proof import PassError
from kit.step.passes.reshard import FORMS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Halves:
    """`forward`: the inputs to the results, then what is kept. `backward`: kept inputs, what is kept, gradients of
    the results to gradients of the inputs. `kept_inputs`: rows of the inputs that the backward reads.
    `unread`: those among them whose values it ignores (BatchNorm's running statistics), which may change meanwhile.
    """

    forward: GraphModule
    backward: GraphModule
    kept_inputs: tuple[int, ...]
    unread: frozenset[int]


def split(joint: GraphModule, *, results: int, tangents: int) -> Halves:
    """The halves of a graph whose first `results` outputs are the forward's and last `tangents` inputs the backward's.

    Nodes noted as backward are the backward. Raises `PassError` when a forward node reads one of them.
    """
    nodes = list(joint.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    inputs, gradients_in = placeholders[: len(placeholders) - tangents], placeholders[len(placeholders) - tangents :]
    behind = _backward_nodes(nodes) | set(gradients_in)
    _require_one_way(nodes, behind)
    returned: Sequence[Node] = nodes[-1].args[0]
    forward_out, gradients_out = list(returned[:results]), list(returned[results:])
    own = [node for node in nodes if node in behind and node.op != "placeholder"]
    wanted = _read_from_before(own, gradients_out, behind)
    again = [node for node in nodes if node in _made_again(wanted)]
    read = _read_from_before([*again, *own], gradients_out, behind | set(again))
    kept_inputs = [node for node in inputs if node in read]
    kept = [node for node in nodes if node in read and node.op == "call_function"]
    ahead = [node for node in nodes if node.op in ("call_function", "get_attr") and node not in behind]
    constants = [node for node in nodes if node.op == "get_attr" and node in read]
    return Halves(
        forward=_graph(joint, inputs, ahead, [*forward_out, *kept]),
        backward=_graph(joint, [*kept_inputs, *kept, *gradients_in], [*constants, *again, *own], gradients_out),
        kept_inputs=tuple(inputs.index(node) for node in kept_inputs),
        unread=frozenset(row for row, node in enumerate(inputs) if _is_only_for_batch_norm(node, {*again, *own})),
    )


def _backward_nodes(nodes: Sequence[Node]) -> set[Node]:
    behind: set[Node] = set()
    for node in nodes:
        if node.op != "call_function":
            continue
        if node.target is operator.getitem:
            is_behind = node.args[0] in behind
        else:
            is_behind = node.meta.get("custom", {}).get("kit_phase") == "backward"
        if is_behind:
            behind.add(node)
    return behind


def _require_one_way(nodes: Sequence[Node], behind: set[Node]) -> None:
    for node in nodes:
        if node.op == "call_function" and node not in behind and behind.intersection(node.all_input_nodes):
            late = behind.intersection(node.all_input_nodes).pop()
            raise PassError(f"{node} of the forward reads {late} of the backward; a pass has moved one of them")


def _read_from_before(own: Sequence[Node], outputs: Sequence[Node], behind: set[Node]) -> set[Node]:
    """Nodes not of the backward that it reads or returns."""
    read = {used for node in own for used in node.all_input_nodes} | set(outputs)
    return {node for node in read if node not in behind}


def _is_only_for_batch_norm(node: Node, readers: set[Node]) -> bool:
    mine = readers.intersection(node.users)
    return bool(mine) and all("batch_norm" in str(user.target) for user in mine)


def _made_again(wanted: set[Node]) -> set[Node]:
    """The views that lead from an input to a wanted node, for each node that is only a view of an input."""
    found: set[Node] = set()
    for node in wanted:
        chain: list[Node] = []
        while node.op == "call_function" and node.target in FORMS and len(node.all_input_nodes) == 1:
            chain.append(node)
            node = node.all_input_nodes[0]
        if node.op == "placeholder":
            found.update(chain)
    return found


def _graph(joint: GraphModule, inputs: Sequence[Node], body: Sequence[Node], outputs: Sequence[Node]) -> GraphModule:
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in body:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output([copies[node] for node in outputs])
    graph.eliminate_dead_code()
    graph.lint()
    return GraphModule(joint, graph)
