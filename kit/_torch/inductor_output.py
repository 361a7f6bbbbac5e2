"""What Inductor made of a graph, as text: the code, and which nodes each kernel does the work of.

Kept when a graph is compiled or comes from a cache: `CompiledFxGraph.post_compile` runs in both cases, and the object
has the code and (with `trace.provenance_tracking_level`) two JSON texts. Level 2 is asked for: its stack traces are of
the graph's own code, `<eval_with_key>`, so they name nodes; level 1 gives the user's lines instead. Seen on 2.13 (CPU:
the C++ kernels of a whole step; no GPU). A torch without one of these fields leaves its text empty.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

# Read by `kit._torch.executors`. The second makes C++ kernels record themselves, so a profile of a CPU shows them;
# it has to be compiled in. Measured (2.13, one loaded core, paired builds, CPU time without a profiler): 1 to 2 us a
# kernel, 4.5 % of a 1.3 ms step of 40 kernels, 0.4 % (builds 0.0 to 2.7) of a step of 5.5 ms.
SETTINGS: dict[str, Any] = {"trace.provenance_tracking_level": 2, "cpp.enable_kernel_profile": True}

_open: list[list["CompiledText"]] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledText:
    """One compiled graph: `key` stands in its range `## Call CompiledFxGraph <key> ##` of a profile.

    `code` is the whole output; `nodes_of` and `stacks_of` are JSON, "" when Inductor did not keep them.
    """

    key: str
    code: str
    nodes_of: str = ""
    stacks_of: str = ""


@contextmanager
def keeping(found: list[CompiledText]) -> Iterator[None]:
    """Add what Inductor compiles or loads in the block to `found`, in order."""
    _watch()
    _open.append(found)
    try:
        yield
    finally:
        _open.remove(found)


class KeptRun:
    """A function that compiles at its first call, with what Inductor made of it then in `texts`."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self._called = False
        self.texts: list[CompiledText] = []

    def __call__(self, *args: Any) -> Any:
        if self._called:
            return self._run(*args)
        with keeping(self.texts):
            result = self._run(*args)
        self._called = True
        return result


def _watch() -> None:
    """Put one wrapper, once, around the method that every compiled graph goes through."""
    from torch._inductor.output_code import CompiledFxGraph

    made = CompiledFxGraph.post_compile
    if hasattr(made, "kit_watches"):
        return

    @wraps(made)
    def post_compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        for found in _open:
            found.append(_text_of(self))
        return made(self, *args, **kwargs)

    post_compile.kit_watches = True  # type: ignore[attr-defined]
    CompiledFxGraph.post_compile = post_compile  # type: ignore[method-assign]


def _text_of(compiled: Any) -> CompiledText:
    def text(name: str) -> str:
        return str(getattr(compiled, name, "") or "")

    return CompiledText(
        key=text("_fx_graph_cache_key"),
        code=text("source_code"),
        nodes_of=text("inductor_provenance_mapping_str"),
        stacks_of=text("inductor_provenance_stack_traces_str"),
    )
