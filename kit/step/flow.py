"""Follow values through a step's flat graph: what each is made of, in-place writes and lists included.

The edges of an FX graph do not say it: an update writes a parameter in place and returns nothing that is read, and one
operator over a list of tensors joins values that do not touch. Here what a memory holds at some time is a
version, and a version knows the versions that it is made of. Order is that of the graph; what a node reads before
it exists is noted, so a graph whose order is broken can be read too.
"""

import operator
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from kit._torch import collectives
from kit._torch.fake import storage_identity
from kit._torch.schema import namespace_and_name, written_arguments

_SCALES = ("mul", "mul_", "div", "div_", "_foreach_mul", "_foreach_mul_", "_foreach_div", "_foreach_div_")

Memory = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Version:
    """What a piece of memory holds from `node` on.

    `reads`: the versions it is made of. `scales`: those that only scale it (a clipping factor, a loss weight).
    """

    node: Node
    reads: tuple[int, ...]
    scales: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class Flow:
    """The versions of a graph in the order in which they come to be.

    `first_write`: of each input that is written, the first node that does. `last`: its last version.
    `readers`: nodes that read the memory of an input, views left out. `early`: pairs (reader, value read before it
    exists). `unwaited`: pairs (reader, collective whose result has not arrived).
    """

    versions: list[Version] = field(default_factory=list)
    first_write: dict[Node, Node] = field(default_factory=dict)
    last: dict[Node, int] = field(default_factory=dict)
    readers: dict[Node, list[Node]] = field(default_factory=dict)
    early: list[tuple[Node, Node]] = field(default_factory=list)
    unwaited: list[tuple[Node, Node]] = field(default_factory=list)


def flow_of(module: GraphModule) -> Flow:
    """The flow of values through a step's graph; every node has its (fake) value in `meta["val"]`."""
    return _Reader().read(module)


class _Reader:
    """Walks one graph once, keeping the present version of every memory."""

    def __init__(self) -> None:
        self.flow = Flow()
        self.now: dict[Memory, int] = {}
        self.input_of: dict[Memory, Node] = {}
        self.at = _Memories()

    def read(self, module: GraphModule) -> Flow:
        seen: set[Node] = set()
        for node in module.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._begin(node)
            elif node.op == "call_function":
                self.flow.early += [(node, used) for used in node.all_input_nodes if used not in seen]
                self._call(node)
            seen.add(node)
        for memory, node in self.input_of.items():
            self.flow.last[node] = self.now[memory]
        return self.flow

    def _begin(self, node: Node) -> None:
        memory = self.at.memory(node, 0)
        if memory not in self.now:
            self.now[memory] = self._add(Version(node=node, reads=()))
            self.input_of[memory] = node
            self.flow.readers[node] = []

    def _call(self, node: Node) -> None:
        self.at.place(node, self.now)
        written = self.at.written(node)
        if node.target is not collectives.WAIT and node.target is not operator.getitem:
            self.flow.unwaited += [(node, used) for used in node.all_input_nodes if collectives.is_started(used.target)]
        views = not written and self._only_views(node)
        for element, reads, scales in self.at.elements(node):
            if not views:
                self._note_reads(node, (*reads, *scales))
            made = Version(node=node, reads=self._versions(reads), scales=self._versions(scales))
            number = -1
            for memory in _memories_at(written, element):
                number = self._add(made) if number < 0 else number
                self.now[memory] = number
                self._note_write(node, memory)
            for memory in self.at.results(node, element):
                if memory not in self.now:
                    number = self._add(made) if number < 0 else number
                    self.now[memory] = number

    def _only_views(self, node: Node) -> bool:
        made = set(self.at.results(node, None))
        return bool(made) and made <= set(self.now)

    def _versions(self, memories: Sequence[Memory]) -> tuple[int, ...]:
        return tuple(self.now[memory] for memory in memories if memory in self.now)

    def _note_reads(self, node: Node, memories: Sequence[Memory]) -> None:
        for memory in memories:
            if memory in self.input_of:
                readers = self.flow.readers[self.input_of[memory]]
                if not readers or readers[-1] is not node:
                    readers.append(node)

    def _note_write(self, node: Node, memory: Memory) -> None:
        if memory in self.input_of:
            self.flow.first_write.setdefault(self.input_of[memory], node)

    def _add(self, version: Version) -> int:
        self.flow.versions.append(version)
        return len(self.flow.versions) - 1


class _Memories:
    """Which memory each value lies in, by its storage; elements of a list count one by one."""

    def __init__(self) -> None:
        self._own: dict[tuple[Node, int], Memory] = {}

    def memory(self, node: Node, element: int) -> Memory:
        """Of a node's value (of a list, its item); the node's own name when it is no tensor."""
        found = self._own.get((node, element))
        return found if found is not None else _storage(node, element)

    def place(self, node: Node, known: Container[Memory]) -> None:
        """Say where a node's results lie, before it is read.

        A pass that gave a node another input leaves its example value as it was, a view of what it read before. So a
        result shares memory only with what the node reads now; any other storage that is known already is not its own.
        """
        read = {
            _storage(used, i): self.memory(used, i) for used in node.all_input_nodes for i in _read_items(node, used)
        }
        for element in range(_count(node)):
            storage = _storage(node, element)
            if storage in read:
                self._own[node, element] = read[storage]
            elif storage in known:
                self._own[node, element] = node.name, element

    def results(self, node: Node, element: int | None) -> list[Memory]:
        """The memories of what a node returns; of a list-wise operator, of one element."""
        value = node.meta.get("val")
        if isinstance(value, tuple | list):
            items = range(len(value)) if element is None or not _is_listwise(node) else (element,)
            return [self.memory(node, item) for item in items if isinstance(value[item], torch.Tensor)]
        return [self.memory(node, 0)] if isinstance(value, torch.Tensor) else []

    def elements(self, node: Node) -> Iterator[tuple[int, list[Memory], list[Memory]]]:
        """Of each element: its number, the memories that it reads, and those that only scale it.

        An operator that is not list-wise has one element. A tensor scales when it is 0-dim and the second
        factor (or the divisor) of a product.
        """
        args = [*node.args, *node.kwargs.values()]
        listwise = _is_listwise(node)
        count = max((len(arg) for arg in args if isinstance(arg, list | tuple)), default=1) if listwise else 1
        may_scale = namespace_and_name(node.target)[1] in _SCALES
        for element in range(count):
            reads: list[Memory] = []
            scales: list[Memory] = []
            for place, arg in enumerate(args):
                into = scales if may_scale and place == 1 and _is_scalar(arg) else reads
                into += self._of(arg, element if listwise else None)
            yield element, reads, scales

    def written(self, node: Node) -> list[list[Memory]]:
        """For each argument that a node writes, its memories in order."""
        found = []
        for place, name in written_arguments(node.target):
            arg = node.kwargs.get(name, node.args[place] if place < len(node.args) else None)
            found.append(self._of(arg, None))
        return found

    def _of(self, arg: Any, element: int | None) -> list[Memory]:
        if isinstance(arg, Node):
            return self.results(arg, None) or [self.memory(arg, 0)]
        if isinstance(arg, list | tuple):
            items = arg if element is None else arg[element : element + 1]
            return [memory for item in items for memory in self._of(item, None)]
        return []


def _storage(node: Node, element: int) -> Memory:
    value = node.meta.get("val")
    if isinstance(value, tuple | list) and element < len(value):
        value = value[element]
    if isinstance(value, torch.Tensor):
        return "", storage_identity(value)
    return node.name, element


def _read_items(node: Node, used: Node) -> Sequence[int]:
    """Which items of `used` a node reads: all, but one where it takes one out of a list."""
    if node.target is operator.getitem and isinstance(node.args[1], int):
        return (node.args[1],)
    return range(_count(used))


def _count(node: Node) -> int:
    value = node.meta.get("val")
    return len(value) if isinstance(value, tuple | list) else 1


def _is_scalar(arg: Any) -> bool:
    value = arg.meta.get("val") if isinstance(arg, Node) else None
    return isinstance(value, torch.Tensor) and value.dim() == 0


def _is_listwise(node: Node) -> bool:
    """Whether element i of each list goes with element i of the others."""
    return namespace_and_name(node.target)[1].startswith("_foreach_")


def _memories_at(written: list[list[Memory]], element: int) -> list[Memory]:
    """What element `element` writes; an operator that is not list-wise writes all it writes."""
    return [memory for memories in written for memory in memories[element : element + 1]]
