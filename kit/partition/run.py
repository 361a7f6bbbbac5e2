"""Turn a cut into stage modules and run them one after the other in one process.

The stages are built node by node and not by `split_module` of torch.fx (2.13), which leaves parameters
in the parent, drops the unused name of a tied parameter and loses nodes when asked to keep the order.
Here each stage owns what it reads: the same `Parameter` objects as the uncut module, so gradients
arrive where they always did. A tied parameter is owned by several stages; in one process that is one
object and its gradient sums by itself.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from kit.partition.record import Cut, CutError


@dataclass(frozen=True, slots=True, kw_only=True)
class Wires:
    """Names of the values a stage takes (inputs of the call among them) and gives, in order."""

    takes: tuple[str, ...]
    gives: tuple[str, ...]


class Stages(nn.Module):
    """The parts of a cut as modules; a call runs them in order and returns what the uncut module returns.

    `parts[p]` is the `GraphModule` of part p: it takes the tensors named in `wires[p].takes` and returns
    a tuple named in `wires[p].gives`. Parameters are shared with the uncut module.
    Random operators draw in the order of the parts, so with dropout only the order `fx` repeats the
    uncut module's numbers.
    """

    def __init__(self, parts: Iterable[fx.GraphModule], *, wires: tuple[Wires, ...], uncut: fx.GraphModule) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.wires = wires
        self._signature = inspect.signature(uncut.forward)
        self._graph = uncut.graph

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run all parts; takes and returns what the uncut module does."""
        values = dict(zip(self._input_names(), self._flat_inputs(args, kwargs), strict=True))
        for part, wires in zip(self.parts, self.wires, strict=True):
            made = part(*(values[name] for name in wires.takes))
            values.update(zip(wires.gives, made, strict=True))
        returned = fx.node.map_arg(self._graph.output_node().args[0], lambda node: values[node.name])
        return self._graph.process_outputs(returned)

    def _input_names(self) -> list[str]:
        return [node.name for node in self._graph.nodes if node.op == "placeholder"]

    def _flat_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Arguments of the call as the placeholders want them: nested ones taken apart."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return list(self._graph.process_inputs(*bound.args, *bound.kwargs.values()))


def stages(cut: Cut, gm: fx.GraphModule) -> Stages:
    """The stages of `cut` as modules; `gm` is the module whose graph was cut, and is not changed.

    Raises `CutError` when the nodes of `gm` are not those of the cut.
    """
    nodes = list(gm.graph.nodes)
    _check_same_nodes(cut, nodes)
    wiring = _Wiring(cut, nodes)
    parts = [_build(gm, *wiring.of_part(part)) for part in range(cut.parts)]
    return Stages([module for module, _ in parts], wires=tuple(wires for _, wires in parts), uncut=gm)


def _check_same_nodes(cut: Cut, nodes: list[fx.Node]) -> None:
    names = tuple(node.name for node in nodes)
    if names == cut.names:
        return
    row = next(
        (row for row, (mine, theirs) in enumerate(zip(cut.names, names, strict=False)) if mine != theirs),
        min(len(names), len(cut.names)),
    )
    found = [repr(side[row]) if row < len(side) else "nothing" for side in (names, cut.names)]
    raise CutError(
        f"the module has {found[0]} as node {row}, the cut of {cut.graph!r} has {found[1]}; expected the "
        "module whose graph was cut: graph_of(gm, name=...), then cut(graph, parts), then stages(cut, gm)"
    )


class _Wiring:
    """Which nodes each part holds, takes and gives."""

    def __init__(self, cut: Cut, nodes: list[fx.Node]) -> None:
        self.nodes = nodes
        self.part_of = dict(zip(nodes, cut.part_of.tolist(), strict=True))
        self.is_copied = {node: copies > 1 for node, copies in zip(nodes, cut.copies.tolist(), strict=True)}

    def of_part(self, part: int) -> tuple[list[fx.Node], list[fx.Node], list[fx.Node]]:
        """(taken, held, given) nodes of a part, each in the order of the graph."""
        own = {n for n in self.nodes if self.part_of[n] == part and n.op not in ("output", "placeholder")}
        held, taken = self._complete(own)
        given = {node for node in own if self._is_needed_after(node, part)}
        in_order: list[Callable[[fx.Node], bool]] = [
            taken.__contains__,
            held.__contains__,
            given.__contains__,
        ]
        first, second, third = ([node for node in self.nodes if keep(node)] for keep in in_order)
        return first, second, third

    def _complete(self, own: set[fx.Node]) -> tuple[set[fx.Node], set[fx.Node]]:
        """Add the copies that nodes of a part read; what is neither own nor copied is taken from outside."""
        held, taken = set(own), set()
        waiting = list(own)
        while waiting:
            for source in waiting.pop().all_input_nodes:
                if source in held or source in taken:
                    continue
                if source.op != "placeholder" and self.is_copied[source]:
                    held.add(source)
                    waiting.append(source)
                else:
                    taken.add(source)
        return held, taken

    def _is_needed_after(self, node: fx.Node, part: int) -> bool:
        """Whether the caller or a later part without a copy of its own reads the node."""
        return any(
            user.op == "output" or (self.part_of[user] > part and not self.is_copied[node]) for user in node.users
        )


def _build(
    gm: fx.GraphModule, taken: list[fx.Node], held: list[fx.Node], given: list[fx.Node]
) -> tuple[fx.GraphModule, Wires]:
    """One stage: placeholders for what is taken, copies of what is held, a tuple of what is given."""
    graph = fx.Graph()
    inside: dict[fx.Node, fx.Node] = {}
    for node in taken:
        inside[node] = graph.placeholder(node.name)
        inside[node].meta = dict(node.meta)
    for node in held:
        inside[node] = graph.node_copy(node, inside.__getitem__)
    graph.output(tuple(inside[node] for node in given))
    graph.lint()
    owned = {
        str(node.target): _attribute(gm, str(node.target)) for node in held if node.op in ("get_attr", "call_module")
    }
    wires = Wires(takes=tuple(node.name for node in taken), gives=tuple(node.name for node in given))
    return fx.GraphModule(owned, graph), wires


def _attribute(gm: fx.GraphModule, target: str) -> torch.Tensor | nn.Module:
    """What a dotted name stands for in the uncut module, the very object."""
    value: Any = gm
    for name in target.split("."):
        value = getattr(value, name)
    return value  # type: ignore[no-any-return]
