"""Tell, while a step is traced, which module and which line of the user each operation comes from.

A whole-step trace knows operators only. Three things are watched while it is made: forward hooks
say which module runs; a torch-function mode sees each call in the user's own frame; and each
gradient node is marked when its forward operation makes it, so that the backward operations
(which the autograd engine runs) carry the module and the line of their forward.
"""

import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from kit._torch.tracing import keep_node_note, set_node_note

Note = dict[str, str]

_TORCH = f"{Path(torch.__file__).parent}/"
_KIT = f"{Path(__file__).parents[1]}/"
PHASES = ("forward", "backward")
ROOT = "(model)"  # the path of the model itself, whose own name is empty
CARRIES, AGAIN = "kit_carries", "kit_again"
SENDS = "kit_sends"  # in the note of what the step itself sends, which passes may move: "parameter" or "gradient"
_KEY = "kit_note"  # in the metadata of an autograd node


def note(phase: str, module: str = "", source: str = "", *, carries: str = "") -> Note:
    """What a traced node carries: the names that `kit.graph` reads.

    `carries`: the parameter (or "(loss)") that a collective of the step itself is for; the user's own have none.
    """
    said = {"kit_phase": phase, "kit_module": module, "kit_source": source}
    return {**said, CARRIES: carries} if carries else said


class _CallMode(TorchFunctionMode):
    """Note the user's line at each call into torch, and mark the gradient nodes it makes.

    `again`: what runs is computed a second time, in the backward.
    """

    def __init__(self, modules: "_ModuleStack", *, again: bool = False) -> None:
        super().__init__()
        self._modules = modules
        self._again = again

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        here = note("backward" if self._again else "forward", self._modules.path, user_line(sys._getframe(1)))
        if self._again:
            here[AGAIN] = "yes"
        set_node_note(here)
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
                _mark(tensor.grad_fn, here)
        return result


class _ModuleStack:
    """The dotted path of the module that runs now; `inside`: the one that runs already."""

    def __init__(self, model: nn.Module, *inside: str) -> None:
        self._names = {module: name or ROOT for name, module in model.named_modules()}
        self._stack: list[str] = list(inside)

    @property
    def path(self) -> str:
        return self._stack[-1] if self._stack else "loss"

    def enter(self, module: nn.Module, args: Any) -> None:
        self._stack.append(self._names.get(module, self.path))

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._stack.pop()


@contextmanager
def watch_forward(model: nn.Module) -> Iterator[None]:
    """Note module and line of every operation that the block runs."""
    try:
        with _watched(_ModuleStack(model), again=False):
            yield
    finally:
        set_node_note(None)


@contextmanager
def watch_again(model: nn.Module, path: str) -> Iterator[None]:
    """The same for what module `path` of the model computes a second time, in the midst of the backward."""
    with keep_node_note(), _watched(_ModuleStack(model, path), again=True):
        yield


@contextmanager
def _watched(modules: _ModuleStack, *, again: bool) -> Iterator[None]:
    hooks: list[RemovableHandle] = [
        register_module_forward_pre_hook(modules.enter),
        register_module_forward_hook(modules.leave, always_call=True),
    ]
    try:
        with _CallMode(modules, again=again):
            yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def watch_backward(root: torch.Tensor) -> Iterator[None]:
    """Note, for what the autograd engine runs in the block, the forward operation it belongs to."""
    hooks: list[RemovableHandle] = []
    for node in _reachable(root.grad_fn):
        of = node.metadata.get(_KEY, {})
        here = note("backward", of.get("kit_module", ""), of.get("kit_source", ""))
        hooks.append(node.register_prehook(lambda _grads, here=here: set_node_note(here)))
    set_node_note(note("backward", "loss"))
    try:
        yield
    finally:
        set_node_note(None)
        for hook in hooks:
            hook.remove()


def owner_of(parameter: str) -> str:
    """The path of the module that owns a parameter."""
    return parameter.rpartition(".")[0] or ROOT


def fill_gaps(module: torch.fx.GraphModule) -> None:
    """Give nodes without a line the line of a neighbour.

    What the step itself puts around the user's code has none: a gather takes the line that first
    reads it, a reduction and what the autograd engine adds takes the line of what it reads.
    """
    for node in module.graph.nodes:
        if node.op == "call_function" and "custom" not in node.meta:  # an item of a tuple
            notes = [n.meta["custom"] for n in node.all_input_nodes if "custom" in n.meta]
            if notes:
                node.meta["custom"] = notes[0]
    nodes = [node for node in module.graph.nodes if node.meta.get("custom", {}).get("kit_phase") in PHASES]
    for phase, order, neighbours in (
        ("forward", reversed(nodes), lambda node: list(node.users)),
        ("forward", nodes, lambda node: node.all_input_nodes),
        ("backward", nodes, lambda node: node.all_input_nodes),
    ):
        for node in order:
            own = node.meta["custom"]
            if own["kit_source"] or own["kit_phase"] != phase:
                continue
            near = [n.meta["custom"] for n in neighbours(node) if n.meta.get("custom", {}).get("kit_source")]
            if near:
                module_path = own["kit_module"] or near[0]["kit_module"]
                node.meta["custom"] = {**own, "kit_source": near[0]["kit_source"], "kit_module": module_path}


def _mark(node: Any, here: Note) -> None:
    """Mark the gradient nodes that one call made: back to those that have a mark."""
    open_nodes = [node]
    while open_nodes:
        node = open_nodes.pop()
        if node is None or _KEY in node.metadata:
            continue
        node.metadata[_KEY] = here
        open_nodes.extend(parent for parent, _ in node.next_functions)


def _reachable(root: Any) -> Iterator[Any]:
    seen: set[Any] = set()
    open_nodes = [root]
    while open_nodes:
        node = open_nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        open_nodes.extend(parent for parent, _ in node.next_functions)


def is_user_file(filename: str) -> bool:
    """Whether a file is neither torch's nor the kit's."""
    return not filename.startswith((_TORCH, _KIT))


def user_line(frame: FrameType | None) -> str:
    """`file:line: code` of the innermost frame that is neither torch's nor the kit's."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return line_text(frame.f_code, frame.f_lineno) if frame is not None else ""


def line_text(code: CodeType, line: int) -> str:
    """One line of source as `file:line: code`."""
    return f"{code.co_filename}:{line}: {linecache.getline(code.co_filename, line).strip()}"
