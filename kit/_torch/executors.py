"""Turn a flat graph into something that runs. Seen on 2.13 (CPU) and 2.11 (CPU, CUDA).

`torch.compile` takes an FX graph as a function; inputs that the graph changes in place stay
changed in place.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

import torch
from torch.fx._lazy_graph_module import _LazyGraphModule

from kit._torch.inductor_output import SETTINGS, CompiledText, KeptRun


@contextmanager
def fresh_compiler() -> Iterator[None]:
    """In the block torch.compile knows nothing of earlier compiles: neither in this process nor on disk.

    `fresh_cache` of Inductor's utilities, seen on 2.11 to 2.13.
    """
    from torch._inductor.utils import fresh_cache

    torch.compiler.reset()
    with fresh_cache():
        yield
    torch.compiler.reset()


def eager(module: torch.fx.GraphModule) -> Callable[..., Any]:
    """Run the graph node by node, each operator as torch has it."""
    return settled(module)


def settled(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same module, its code written: one of `tracing.trace` writes it when called, then calls its hooks twice."""
    _LazyGraphModule.force_recompile(module)
    return module


class AotEager(torch.nn.Module):
    """The graph through AOTAutograd, made functional and lowered to core operators, each run as torch has it.

    Compiles at its first call, for inputs of those shapes. Not through Dynamo, which would read the graph's code as
    though it were a person's: that took longer than the rest of the compile, and its guards on every input take time
    at every step. `torch._dynamo.backends.debugging.aot_eager(graph, inputs)`, seen on 2.11 and 2.13.
    """

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__()
        self._module = settled(module)
        self._run: Callable[..., Any] | None = None

    def forward(self, *args: Any) -> Any:
        """What the graph gives for its inputs."""
        if self._run is None:
            from torch._dynamo.backends.debugging import aot_eager

            self._run = aot_eager(self._module, list(args))
        return self._run(*args)


# Settings of Inductor that a step needs otherwise than they come.
# reorder_for_peak_memory, reorder_for_locality: undo an early start of a collective, or start several gathers at once.
# mix_order_reduction (CUDA): gives a gradient that is part of a bucket a new buffer and leaves its place in the bucket
# unwritten, so what is reduced there is whatever the memory held (seen on 2.11: NaN in a bias now and then; the code is
# the same in 2.13), and fails in an assertion when a gradient has a second reader, as with clipping.
_INDUCTOR = {"reorder_for_peak_memory": False, "reorder_for_locality": False, "triton.mix_order_reduction": False}


def inductor(module: torch.fx.GraphModule) -> Callable[..., Any]:
    """The graph compiled by Inductor, which keeps the order of collectives that the passes gave it.

    `texts_of` tells what was made, once it was called.
    """
    from torch._inductor import config

    _leave_the_order_of_loops_of_other_kernels()
    known = config.get_config_copy()
    wanted = {**_INDUCTOR, **SETTINGS}
    options = {name: value for name, value in wanted.items() if name in known}
    return KeptRun(torch.compile(settled(module), backend="inductor", fullgraph=True, dynamic=False, options=options))


@cache
def _leave_the_order_of_loops_of_other_kernels() -> None:
    """Have Inductor decline to reorder the loops of a fused node that holds what has none, as 2.13 does.

    2.11 asserts there that all are loops of its own, and fails on a sharded step with clipping on CUDA.
    """
    from torch._inductor.scheduler import FusedSchedulerNode, SchedulerNode

    reorder = FusedSchedulerNode.reorder_loops_by_dep_pair

    @wraps(reorder)
    def reorder_own(self: Any, *dependencies: Any) -> Any:
        own = all(isinstance(node, SchedulerNode) for node in self.snodes)
        return reorder(self, *dependencies) if own else False

    FusedSchedulerNode.reorder_loops_by_dep_pair = reorder_own  # type: ignore[method-assign,assignment]


def texts_of(run: object) -> tuple[CompiledText, ...]:
    """What Inductor made of what an executor gave; () for other executors and before the first call."""
    return tuple(run.texts) if isinstance(run, KeptRun) else ()


EXECUTORS: dict[str, Callable[[torch.fx.GraphModule], Callable[..., Any]]] = {
    "eager": eager,
    "aot_eager": AotEager,
    "inductor": inductor,
}
