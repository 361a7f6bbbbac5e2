"""Leave out of a step's graph what changes nothing: views that undo each other, copies, repeated work.

One walk over the graph. A node goes when an earlier one is the same value:

- the same memory in the same shape: a `detach`, a full slice, a transpose of a transpose;
- a copy (clone, cast and back, `cat` of one or of all pieces) of what nobody changes while it is read;
- the same operator on the same arguments.

What it must not merge: random draws, collectives, anything whose memory is written in between. Nor is
a value of the forward kept for the backward: computing it again there is what checkpointing asks for.
torch's own `fx_graph_cse` takes a functional graph for granted and would do all of these.
"""

import operator
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node

from kit._torch import collectives, schema, trees
from kit.graph.price import tensors_in
from kit.step.passes.copies import Copied, copied
from kit.step.passes.memory import Memory, written
from kit.step.passes.reshard import segment_numbers

aten: Any = torch.ops.aten

_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


def prune(module: GraphModule) -> None:
    """Redirect the readers of each superfluous node; dead code elimination then takes it out."""
    pruning = _Pruning(module)
    for node in list(module.graph.nodes):
        pruning.visit(node)


class _Pruning:
    """What the walk has seen: the first node of each view of a memory, and of each computation."""

    def __init__(self, module: GraphModule) -> None:
        self._memory = Memory(module)
        self._segment_of = segment_numbers(module)
        self._views: dict[object, Node] = {}
        self._computed: dict[object, Node] = {}

    def visit(self, node: Node) -> None:
        same = self._earlier(node)
        if same is not None:
            node.replace_all_uses_with(same)
            return
        view = self._view_key(node)
        if view is not None and not collectives.is_started(node.target):
            self._views.setdefault(view, node)  # what has not arrived stands for nothing: its wait does

    def _earlier(self, node: Node) -> Node | None:
        """An earlier node that every reader of `node` may read in its place."""
        if node.op == "get_attr":
            return self._first(("attribute", node.target), node)
        if node.op != "call_function" or not self._is_plain(node) or any(user.op == "output" for user in node.users):
            return None  # results keep their own memory
        self._skip_a_reshape(node)
        view = self._view_key(node)
        if view is not None and view in self._views:
            return self._views[view]
        copy = copied(node)
        if copy is not None and self._is_kept_equal(node, copy):
            self._stand_in(node, copy.source)
            return copy.source
        return self._repeated(node)

    def _skip_a_reshape(self, node: Node) -> None:
        """Let a view of a view that nobody else reads be a view of what that was taken from."""
        between = node.args[0] if node.target in _RESHAPES else None
        if not isinstance(between, Node) or len(between.all_input_nodes) != 1 or not self._is_plain(between):
            return
        base, memory = between.all_input_nodes[0], self._memory
        own = memory.of(node)
        if len(between.users) > 1 or memory.of(base) != own or memory.of(between) != own:
            return
        if not _is_same_run(base.meta["val"], node.meta["val"]):
            return
        if not memory.is_written_between(own, memory.place[base], memory.place[node]):
            node.update_arg(0, base)

    def _is_plain(self, node: Node) -> bool:
        """Whether a node only computes: no write, no random draw, no message, no unknown effect."""
        if node.target is operator.getitem:
            return True
        namespace, name = schema.namespace_and_name(node.target)
        if namespace not in ("aten", "prims") or name.startswith(("empty", "new_empty")):
            return False
        tags = getattr(node.target, "tags", ())
        return torch.Tag.nondeterministic_seeded not in tags and not written(node, self._memory)

    def _view_key(self, node: Node) -> object | None:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return None
        memory = self._memory.find(value)
        version = self._memory.writes_before(memory, self._memory.place[node])
        return memory, version, _form(value), value.is_conj(), value.is_neg()

    def _first(self, key: object, node: Node) -> Node | None:
        first = self._computed.setdefault(key, node)
        return None if first is node else first

    def _repeated(self, node: Node) -> Node | None:
        makes = self._memory.of(node) - {m for source in node.all_input_nodes for m in self._memory.of(source)}
        key = (_frozen((node.target, node.args, node.kwargs)), self._segment_of[node] if makes else -1)
        first = self._first(key, node)
        if first is None:
            return None
        if not self._may_repeat(first, node, makes):
            self._computed[key] = node
            return None
        if makes:
            self._stand_in(node, first)
        return first

    def _may_repeat(self, first: Node, node: Node, makes: set[object]) -> bool:
        memory, place = self._memory, self._memory.place
        read = {m for source in node.all_input_nodes for m in memory.of(source)}
        if memory.is_written_between(read, place[first], place[node]):
            return False
        ours, theirs = _tensors(node), _tensors(first)
        return not makes or (
            not memory.is_written(makes | memory.of(first)) and [*map(_form, ours)] == [*map(_form, theirs)]
        )

    def _is_kept_equal(self, node: Node, copy: Copied) -> bool:
        """Whether what was copied may stand for its copy: neither is written as long as the copy is read."""
        memory, value, own_value = self._memory, copy.source.meta["val"], node.meta["val"]
        if _form(value) != _form(own_value) or _storage_bytes(value) != _storage_bytes(own_value):
            return False
        own, of_source = memory.of(node), memory.of(copy.source)
        if own & of_source or memory.is_written(own):
            return False
        return not memory.is_written_between(of_source, memory.place[copy.read_by], memory.last_read(own))

    def _stand_in(self, node: Node, source: Node) -> None:
        """Let the values that lie in `node`'s memory lie in `source`'s, so that later questions are answered right."""
        for old, new in zip(_tensors(node), _tensors(source), strict=True):
            gone = self._memory.find(old)
            for member in self._memory.members(gone):
                if member is not node:
                    value = member.meta["val"]
                    member.meta["val"] = trees.mapped(partial(self._moved, gone, new), value)
            self._memory.merge(self._memory.find(new), gone)

    def _moved(self, gone: object, new: torch.Tensor, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or self._memory.find(value) != gone or value.dtype != new.dtype:
            return value
        return new.as_strided(value.shape, value.stride(), value.storage_offset())


def _tensors(node: Node) -> list[torch.Tensor]:
    return tensors_in(node.meta.get("val"))


def _form(value: torch.Tensor) -> tuple[object, ...]:
    return tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.device


def _is_same_run(base: Any, value: torch.Tensor) -> bool:
    """Whether two views of a memory are the same run of it from end to end, in whatever shape."""
    return (
        isinstance(base, torch.Tensor)
        and base.is_contiguous()
        and value.is_contiguous()
        and (base.numel(), base.storage_offset(), base.dtype) == (value.numel(), value.storage_offset(), value.dtype)
        and not (base.is_conj() or base.is_neg())
    )


def _storage_bytes(value: torch.Tensor) -> int:
    return value.untyped_storage().nbytes()


def _frozen(argument: Any) -> object:
    """An argument as a key: nodes by identity, numbers by type and text (1 is not 1.0, nor 0.0 -0.0)."""
    if isinstance(argument, tuple | list):
        return tuple(map(_frozen, argument))
    if isinstance(argument, dict):
        return tuple((name, _frozen(value)) for name, value in sorted(argument.items()))
    if isinstance(argument, Node):
        return argument
    return type(argument), repr(argument) if isinstance(argument, float | complex) else argument
