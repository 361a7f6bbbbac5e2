"""Turn a flat graph into something that runs. Seen on 2.13 (CPU).

`torch.compile` takes an FX graph as a function; inputs that the graph changes in place stay
changed in place.
"""

from collections.abc import Callable
from typing import Any

import torch


def eager(module: torch.fx.GraphModule) -> Callable[..., Any]:
    """Run the graph node by node, each operator as torch has it."""
    return module


def compiled(module: torch.fx.GraphModule, backend: str) -> Callable[..., Any]:
    """The graph through `torch.compile`, whole or not at all; compiles at its first call."""
    return torch.compile(module, backend=backend, fullgraph=True, dynamic=False)


EXECUTORS: dict[str, Callable[[torch.fx.GraphModule], Callable[..., Any]]] = {
    "eager": eager,
    "aot_eager": lambda module: compiled(module, "aot_eager"),
    "inductor": lambda module: compiled(module, "inductor"),
}
