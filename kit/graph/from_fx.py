"""Turn a torch.fx graph into a Graph record.

Takes both forms the kit captures: exported forward graphs (composite operators, parameters as
`get_attr`) and flat whole-step graphs (operators in place on placeholders, functional collectives).
Values are taken from `meta["val"]`; a pass that inserted a node without one gets it evaluated on fake
tensors here, so the given graph is only read, never changed.
"""

import operator
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import fx

from kit._torch.fake import as_fake, fake_mode_of, hint_of, is_known, running_fake, storage_identity
from kit._torch.schema import (
    is_higher_order,
    is_operator,
    namespace_and_name,
    returned_argument,
    returns_nothing,
    written_arguments,
)
from kit.graph.aliasing import SharedMemory
from kit.graph.price import FlopPrices, bytes_moved, tensor_bytes, tensors_in
from kit.graph.provenance import module_of, phase_of, source_of
from kit.graph.record import Graph, Kind, Phase

_COLLECTIVE_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor")

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class GraphError(ValueError):
    """An FX graph that cannot become a record."""


def graph_of(gm: fx.GraphModule, *, name: str, parameters: Mapping[str, str] | None = None) -> Graph:
    """The record of `gm`, priced; `gm` is not changed.

    `parameters`: placeholder node name -> name of the parameter, buffer or optimizer state it holds.
    Parameters and buffers read by `get_attr` are found by themselves.
    Raises `GraphError` when a placeholder has no shape in its metadata.
    """
    return _Reader(gm, name, dict(parameters or {})).read()


class _Reader:
    """Walks one FX graph once; each method answers one question about a node."""

    def __init__(self, gm: fx.GraphModule, name: str, parameters: dict[str, str]) -> None:
        self.gm, self.name, self.parameters = gm, name, parameters
        self.nodes = list(gm.graph.nodes)
        self.row = {node: row for row, node in enumerate(self.nodes)}
        self.mode = fake_mode_of(t for node in self.nodes for t in tensors_in(node.meta.get("val")))
        self.prices = FlopPrices(self.mode)
        # Of a tied parameter export may keep either name, so both count.
        owned = (*gm.named_parameters(remove_duplicate=False), *gm.named_buffers(remove_duplicate=False))
        self.owned = {name for name, _ in owned}
        self.values: dict[fx.Node, Any] = {}
        self.memory = SharedMemory()

    def read(self) -> Graph:
        kinds: list[Kind] = []
        moved = np.zeros(len(self.nodes), np.int64)
        flops = np.zeros(len(self.nodes), np.float64)
        for row, node in enumerate(self.nodes):
            args, kwargs = self._arguments(node)
            value = self.values[node] = self._value(node, args, kwargs)
            self._require_known_sizes(node, value)
            self._share_memory(node, args, kwargs, value)
            kinds.append(kind := self._kind(node, args, kwargs, value))
            if kind in (Kind.COMPUTE, Kind.COLLECTIVE):
                written = self._written(node.target, args, kwargs)
                moved[row] = bytes_moved(node.target, (args, kwargs), value, written=written)
                flops[row] = self._flops(node, args, kwargs, value)
        return self._record(tuple(kinds), moved, flops)

    def _arguments(self, node: fx.Node) -> _Arguments:
        return cast(_Arguments, fx.node.map_arg((node.args, node.kwargs), lambda used: self.values[used]))

    def _value(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if node.op == "get_attr":
            return self._attribute(node)
        if "val" in node.meta:
            return node.meta["val"]
        if node.op == "output" or returns_nothing(node.target):
            return None
        if node.op == "placeholder":
            if isinstance(node.meta.get("example_value"), torch.Tensor):
                return node.meta["example_value"]
            raise GraphError(
                f"graph {self.name!r}: placeholder {node.name!r} has no value in its metadata, so no shape "
                "is known; capture the graph with kit.capture, torch.export or make_fx, which leave one"
            )
        if is_higher_order(node.target):
            return node.meta.get("example_value")
        with running_fake(self.mode), torch.no_grad():
            return self._call(node, args, kwargs)

    def _require_known_sizes(self, node: fx.Node, value: Any) -> None:
        for tensor in tensors_in(value):
            unknown = [str(size) for size in tensor.shape if not is_known(size)]
            if unknown:
                raise GraphError(
                    f"graph {self.name!r}: {source_of(node.meta) or node.name} gives a tensor with a size of "
                    f"{unknown[0]}, a number that depends on values; expected fixed shapes in a static graph. Use "
                    "torch.where or a mask in place of selecting, or move it out of the model"
                )

    def _call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.op == "call_module":
            raise GraphError(
                f"graph {self.name!r}: {node.name!r} calls a whole module ({node.target}); "
                "trace down to operators with kit.capture or torch.export"
            )
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def _attribute(self, node: fx.Node) -> Any:
        value: Any = self.gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            return value
        fake = node.meta["val"] if isinstance(node.meta.get("val"), torch.Tensor) else as_fake(self.mode, value)
        # Tied parameters are two attributes but one memory.
        self.memory.join(("real", storage_identity(value)), storage_identity(fake))
        return fake

    def _share_memory(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> None:
        """Join a result with the argument that the schema says it aliases, in case a pass lost it."""
        place = returned_argument(node.target) if node.op == "call_function" else None
        if namespace_and_name(node.target)[1] == "wait_tensor":
            place = (0, "tensor")  # returns its argument, though its metadata holds a fresh tensor
        if place is None or not isinstance(value, torch.Tensor):
            return
        argument = kwargs.get(place[1], args[place[0]] if place[0] < len(args) else None)
        if isinstance(argument, torch.Tensor):
            self.memory.join(storage_identity(argument), storage_identity(value))

    def _written(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        places = written_arguments(target)
        if namespace_and_name(target)[1] in ("batch_norm", "native_batch_norm") and len(args) > 5 and args[5]:
            places = ((3, "running_mean"), (4, "running_var"))  # written in training, the schema hides it
        return [t for at, name in places for t in tensors_in(kwargs.get(name, args[at] if at < len(args) else None))]

    def _kind(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> Kind:
        if node.op == "placeholder":
            return Kind.INPUT
        if node.op == "get_attr":
            return Kind.INPUT if node.target in self.owned else Kind.CONSTANT
        if node.op == "output":
            return Kind.OUTPUT
        if node.target is operator.getitem and not isinstance(args[0], torch.Tensor):
            return Kind.GETITEM
        namespace, operation = namespace_and_name(node.target)
        if namespace in _COLLECTIVE_NAMESPACES:
            return Kind.WAIT if "wait" in operation else Kind.COLLECTIVE
        made = {self.memory.find(storage_identity(t)) for t in tensors_in(value)}
        read = {self.memory.find(storage_identity(t)) for t in tensors_in((args, kwargs))}
        if made and made <= read and not self._written(node.target, args, kwargs) and not _writes_by_name(node):
            return Kind.VIEW
        return Kind.COMPUTE

    def _flops(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> float:
        if is_higher_order(node.target):
            inner = [graph for graph in [*args, *kwargs.values()] if isinstance(graph, fx.GraphModule)]
            # Of a conditional one branch runs: the dearer one is counted.
            inner_flops = [graph_of(graph, name=f"{self.name}.{node.name}").flops.sum() for graph in inner]
            return float(max(inner_flops, default=0.0))
        if node.op == "call_method":
            return self.prices.flops(getattr(torch.Tensor, str(node.target)), args, kwargs, value)
        return self.prices.flops(node.target, args, kwargs, value)

    def _record(self, kinds: tuple[Kind, ...], moved: Any, flops: Any) -> Graph:
        storage = np.array([self._storage(node) for node in self.nodes], np.int32).reshape(-1)
        writes = list(self._writes())
        mutates = np.full(len(self.nodes), -1, np.int32)
        for row, number in reversed(writes):
            mutates[row] = number
        edges = [(self.row[used], row) for row, node in enumerate(self.nodes) for used in node.all_input_nodes]
        ends = np.array(edges, np.int32).reshape(-1, 2)
        parameter = tuple(self._parameter(node) for node in self.nodes)
        return Graph(
            name=self.name,
            names=tuple(node.name for node in self.nodes),
            targets=tuple(map(_target_name, self.nodes)),
            kinds=kinds,
            phases=self._phases(),
            modules=tuple(
                module_of(node.meta) or owner.rpartition(".")[0]
                for node, owner in zip(self.nodes, parameter, strict=True)
            ),
            sources=tuple(source_of(node.meta) for node in self.nodes),
            shapes=tuple(_shape_text(self.values[node]) for node in self.nodes),
            groups=tuple(map(_group, self.nodes, kinds)),
            parameter=parameter,
            bytes_out=np.array([self._bytes_out(node) for node in self.nodes], np.int64).reshape(-1),
            bytes_moved=moved,
            flops=flops,
            storage=storage,
            mutates=mutates,
            edge_from=ends[:, 0].copy(),
            edge_to=ends[:, 1].copy(),
            also_mutates=tuple((row, number) for row, number in writes if number != mutates[row]),
        )

    def _storage(self, node: fx.Node) -> int:
        value = self.values[node]
        return self.memory.number(storage_identity(value)) if isinstance(value, torch.Tensor) else -1

    def _bytes_out(self, node: fx.Node) -> int:
        value = self.values[node]
        return tensor_bytes(value) if isinstance(value, torch.Tensor) else 0

    def _writes(self) -> Iterator[tuple[int, int]]:
        """(row, storage number) of each in-place write, a pair once."""
        for row, node in enumerate(self.nodes):
            if node.op == "call_function":
                args, kwargs = self._arguments(node)
                tensors = self._written(node.target, args, kwargs)
            elif _writes_by_name(node):
                tensors = tensors_in(self._arguments(node)[0])[:1]
            else:
                continue
            yield from dict.fromkeys((row, self.memory.number(storage_identity(tensor))) for tensor in tensors)

    def _parameter(self, node: fx.Node) -> str:
        if node.op == "placeholder":
            return self.parameters.get(node.name, "")
        return str(node.target) if node.op == "get_attr" and node.target in self.owned else ""

    def _phases(self) -> tuple[Phase, ...]:
        """Stated phases; an input belongs where it is first used, the output where the graph ends."""
        stated = [phase_of(node.meta) for node in self.nodes]
        order = list(Phase)
        for row in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[row]
            if stated[row] is None and node.op in ("placeholder", "get_attr") and node.users:
                stated[row] = stated[min(self.row[user] for user in node.users)]
            elif stated[row] is None and node.op == "output":
                stated[row] = max((p for p in stated if p), key=order.index, default=None)
        return tuple(phase or Phase.FORWARD for phase in stated)


def _writes_by_name(node: fx.Node) -> bool:
    """Whether a tensor method writes its tensor: torch's spelling is one trailing underscore."""
    target = str(node.target)
    return node.op == "call_method" and target.endswith("_") and not target.endswith("__")


def _target_name(node: fx.Node) -> str:
    if node.target is operator.getitem:
        return "getitem"
    if node.op == "call_function" and not is_operator(node.target):
        module = getattr(node.target, "__module__", "") or ""
        called = getattr(node.target, "__name__", str(node.target))
        return f"{module}.{called}".lstrip(".")
    return str(node.target)


def _group(node: fx.Node, kind: Kind) -> str:
    """The process group of a functional collective: its last argument, a name."""
    if kind is not Kind.COLLECTIVE:
        return ""
    last = node.kwargs.get("group_name", node.args[-1] if node.args else "")
    return last if isinstance(last, str) else str(last)


def _shape_text(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return ""
    sizes = ", ".join(str(hint_of(size)) for size in value.shape)
    return f"{str(value.dtype).removeprefix('torch.')}[{sizes}]"
