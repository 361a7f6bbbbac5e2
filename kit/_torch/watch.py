"""See what runs inside compiled graphs and what outside: graphs, operators, collectives, breaks.

Two private doors. A backend for Dynamo that runs its graphs node by node and says when one runs; forced on every
`torch.compile` in a block by `set_stance` (public), so a model that is compiled already is seen without being
changed. And a dispatch mode that sees each operator, c10d's of DDP's
reducer and FSDP2's hooks included. Dynamo compiles nothing under a dispatch mode: run once without, then with.
Seen on 2.13 (gloo): `aot_autograd`, `make_boxed_func`, `compile_subgraph_reason` of a graph,
`set_stance(force_backend=)`.
"""

import logging
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from functorch.compile import make_boxed_func  # type: ignore[import-untyped]
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

UNSUPPORTED = TorchDynamoException
_QUIET = ("wait_tensor", "barrier", "monitored_barrier_")  # of the collectives' namespaces, and no transfer of data
_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
_NO_WORK = ("profiler.", "aten.empty", "aten.new_empty")  # notes for a profiler, memory without a value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ran:
    """A compiled graph: "forward" or "backward", and why it ended early (reason, stack of the user), if it did."""

    part: str
    reason: str = ""
    stack: tuple[Any, ...] = ()


@dataclass(slots=True)
class Watch:
    """What ran: `graphs` in order (one that runs twice is there twice), operators that compute or send by name."""

    graphs: list[Ran] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    depth: int = 0
    counting: bool = False

    @property
    def collectives_inside(self) -> int:
        """Collectives that a graph starts."""
        return sum(map(is_collective_name, self.inside))

    @property
    def collectives_outside(self) -> int:
        """Collectives that something else starts."""
        return sum(map(is_collective_name, self.outside))

    @contextmanager
    def counted(self) -> Iterator[None]:
        """What runs in the block counts."""
        before, self.counting = self.counting, True
        try:
            yield
        finally:
            self.counting = before

    @contextmanager
    def graph(self, ran: Ran) -> Iterator[None]:
        """What runs in the block is inside a graph."""
        self.graphs.append(ran)
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def note(self, name: str) -> None:
        """An operator ran."""
        if self.counting and not name.startswith(_NO_WORK):
            (self.inside if self.depth else self.outside).append(name)


_watches: list[Watch] = []


def is_collective_name(name: str) -> bool:
    """Whether an operator's name (`namespace.name`) is a collective's."""
    namespace, _, rest = name.partition(".")
    return namespace in _COLLECTIVES and rest not in _QUIET


@contextmanager
def compiles_to_watched_graphs() -> Iterator[None]:
    """Within the block each `torch.compile` gives graphs that a `Watch` sees; compiled code of before is dropped."""
    # What was compiled before would change what is found: after FSDP2, Dynamo skips the model's class for good.
    torch.compiler.reset()
    said_once = logging.getLogger("torch._dynamo.variables.ctx_manager")
    said_once.addFilter(_no_record_function)
    try:
        with torch.compiler.set_stance("default", force_backend=watched_backend), warnings.catch_warnings():
            # Dynamo asks for it itself where a graph starts again after a break (2.13).
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
            yield
    finally:
        said_once.removeFilter(_no_record_function)
        torch.compiler.reset()


def _no_record_function(record: logging.LogRecord) -> bool:
    """Drops what Dynamo says of DDP's and FSDP2's notes for the profiler: the user wrote none of them."""
    return "rofiler record function" not in str(record.msg)


def compiled(module: torch.nn.Module) -> Any:
    """The module under torch.compile, for a `Watch` to see."""
    return torch.compile(module, backend=watched_backend)


def watched_backend(module: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """Dynamo's graph as forward and backward graphs that say when they run."""
    found = getattr(module, "compile_subgraph_reason", None)
    broke = found is not None and bool(getattr(found, "graph_break", True))
    reason, stack = (str(found.reason), tuple(found.user_stack)) if found is not None and broke else ("", ())

    def compiler(part: str) -> Callable[..., Any]:
        ran = Ran(part=part, reason=reason if part == "forward" else "", stack=stack)
        return lambda gm, _examples: make_boxed_func(_saying(gm, ran))

    backend = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        keep_inference_input_mutations=True,  # as Inductor has it: updates in place are part of the graph
    )
    return backend(module, examples)


def _saying(module: torch.fx.GraphModule, ran: Ran) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        if not _watches:
            return module(*args)
        with _watches[-1].graph(ran):
            return module(*args)

    return run


@contextmanager
def watching(modules: Sequence[tuple[torch.nn.Module, str]] = ()) -> Iterator[Watch]:
    """See what runs in the block. `modules`: graphs that run outside torch.compile, each with its part."""
    watch = Watch()
    runs = [(module, Ran(part=part)) for module, part in modules]
    open_graphs: list[Any] = []

    def enter(module: Any, _args: Any) -> None:
        open_graphs.append(watch.graph(next(ran for known, ran in runs if known is module)))
        open_graphs[-1].__enter__()

    def leave(_module: Any, _args: Any, _result: Any) -> None:
        open_graphs.pop().__exit__(None, None, None)

    hooks = [hook for m, _ in runs for hook in (m.register_forward_pre_hook(enter), m.register_forward_hook(leave))]
    _watches.append(watch)
    try:
        with _Mode(watch):
            yield watch
    finally:
        _watches.remove(watch)
        for hook in hooks:
            hook.remove()


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each operator that computes or sends."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled code run under this mode: it only looks (2.13; graphs are guarded on other modes)."""
        return True

    @classmethod
    def is_infra_mode(cls) -> bool:
        """The same for torch without `ignore_compile_internals`."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again as the operators and collectives that it is made of
        if not _is_view(func):
            self._watch.note(_name(func))
        return func(*args, **(kwargs or {}))


def _name(func: Any) -> str:
    if not isinstance(func, torch._ops.OpOverload):
        return str(func)
    return f"{func.namespace}.{func._schema.name.partition('::')[2]}"


def _is_view(func: Any) -> bool:
    """Whether an operator only shows memory in another form (`detach`, `view`): it costs nothing."""
    if func is operator.getitem or not isinstance(func, torch._ops.OpOverload):
        return func is operator.getitem
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


def is_compiled_whole(module: torch.nn.Module) -> bool:
    """Whether a module runs under torch.compile: `torch.compile(module)` or `module.compile()`."""
    wrapped = isinstance(module, torch._dynamo.eval_frame.OptimizedModule)
    return wrapped or getattr(module, "_compiled_call_impl", None) is not None


def without_compile(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside a `torch.compile(module)`, or the module itself."""
    inner = getattr(module, "_orig_mod", module)
    return inner if isinstance(inner, torch.nn.Module) else module


def in_words(reason: str) -> str:
    """The explanation among the lines that Dynamo gives for a break, without its hints; one line."""
    if reason.startswith("generic_jump"):
        return "Python branches on the value of a tensor"
    lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith("Explanation:")), None)
    first = lines[0] if lines else "no reason given"
    return (told.removeprefix("Explanation:").strip() if told else first).rstrip(".")
