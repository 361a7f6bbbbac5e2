"""Which values of a flat graph share memory, and where that memory is written and read.

A step's graph is not functional: the update changes parameters in place, and so may the user's own
operators. A rewrite that lets one value stand for another asks here whether both stay equal.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import torch
from torch.fx import GraphModule, Node

from kit._torch import collectives, schema
from kit._torch.fake import storage_identity
from kit.graph.aliasing import SharedMemory
from kit.graph.price import tensor_bytes, tensors_in

# Their running statistics are written in training, which the schemas hide.
_NORMS = ("batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")


class Memory:
    """The memory of a graph's values as the graph is now; `place` is the order of its nodes.

    Two values that may overlap count as one memory, so the answers err on the side of caution.
    """

    def __init__(self, module: GraphModule) -> None:
        self.place = {node: place for place, node in enumerate(module.graph.nodes)}
        self._shared = SharedMemory()
        self._members: dict[object, list[Node]] = defaultdict(list)
        self._writes: dict[object, list[int]] = defaultdict(list)
        self._last_read: dict[object, int] = defaultdict(int)
        for node in self.place:
            self._join(node, module)
        of = {node: self.of(node) for node in self.place}
        for node in self.place:
            self._note(node, of)

    def of(self, node: Node) -> set[object]:
        """The memories that a node's value lies in."""
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            return {self.find(value)}
        return {self.find(tensor) for tensor in tensors_in(value)}

    def find(self, tensor: torch.Tensor) -> object:
        """The memory that a (fake) tensor of the graph lies in."""
        return self._shared.find(storage_identity(tensor))

    def members(self, memory: object) -> list[Node]:
        """The nodes whose values lie in a memory, in graph order."""
        return self._members[memory]

    def writes_before(self, memory: object, place: int) -> int:
        """How often a memory was written up to and with the node at `place`."""
        return bisect_right(self._writes[memory], place)

    def is_written(self, memories: Iterable[object]) -> bool:
        """Whether any node writes one of the memories."""
        return any(self._writes[memory] for memory in memories)

    def is_written_between(self, memories: Iterable[object], after: int, until: int) -> bool:
        """Whether a node past place `after`, up to and with `until`, writes one of the memories."""
        return any(self.writes_before(m, after) != self.writes_before(m, until) for m in memories)

    def last_read(self, memories: Iterable[object]) -> int:
        """The place of the last node that reads one of the memories, or waits for what reads it."""
        return max((self._last_read[memory] for memory in memories), default=0)

    def peak_bytes(self) -> int:
        """The most bytes alive at once, inputs included: from the node that makes a memory to the last that reads it.

        Inputs and constants live throughout. As `kit.graph.liveness` has it, but that what is sent lives until it has
        arrived.
        """
        change = [0] * (len(self.place) + 1)
        held = 0
        for memory, nodes in self._members.items():
            maker = nodes[0]
            size = tensor_bytes(next(t for t in tensors_in(maker.meta["val"]) if self.find(t) == memory))
            if maker.op in ("placeholder", "get_attr"):
                held += size
                continue
            born = self.place[maker]
            change[born] += size
            change[max(born, self._last_read[memory]) + 1] -= size
        return held + max(accumulate(change), default=0)

    def merge(self, kept: object, other: object) -> None:
        """Count two memories as one from now on."""
        kept, other = self._shared.find(kept), self._shared.find(other)
        if kept == other:
            return
        self._shared.join(kept, other)
        self._members[kept] += self._members.pop(other, [])
        self._writes[kept] = sorted(self._writes[kept] + self._writes.pop(other, []))
        self._last_read[kept] = max(self._last_read[kept], self._last_read.pop(other, 0))

    def _join(self, node: Node, module: GraphModule) -> None:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return
        if node.op == "get_attr":
            real = getattr(module, str(node.target), None)
            if isinstance(real, torch.Tensor):  # two attributes may hold one tensor
                self._shared.join(("real", storage_identity(real)), storage_identity(value))
            return
        place = schema.returned_argument(node.target)
        if node.target is collectives.WAIT:
            place = (0, "tensor")  # returns its argument, though its metadata holds a fresh tensor
        source = _argument(node, place) if place is not None else None
        for tensor in tensors_in(_values(source)):
            self._shared.join(storage_identity(tensor), storage_identity(value))

    def _note(self, node: Node, of: dict[Node, set[object]]) -> None:
        here = self.place[node]
        for memory in of[node]:
            self._members[memory].append(node)
        for memory in written(node, self):
            self._writes[memory].append(here)
        read = list(node.all_input_nodes)
        if node.target is collectives.WAIT:  # what was sent is read until it has arrived
            read += [source for start in node.all_input_nodes for source in start.all_input_nodes]
        for source in read:
            for memory in of[source]:
                self._last_read[memory] = here


def written(node: Node, memory: Memory) -> set[object]:
    """The memories that a node writes in place."""
    places = schema.written_arguments(node.target)
    if schema.namespace_and_name(node.target)[1] in _NORMS:
        places = ((3, "running_mean"), (4, "running_var"))
    values = [_values(_argument(node, place)) for place in places]
    return {memory.find(tensor) for tensor in tensors_in(values)}


def _argument(node: Node, place: tuple[int, str]) -> Any:
    position, name = place
    return node.kwargs.get(name, node.args[position] if position < len(node.args) else None)


def _values(argument: Any) -> Any:
    """The (fake) values of the nodes in an argument, nested as they are."""
    return torch.fx.node.map_arg(argument, lambda used: used.meta.get("val"))
