"""make_fx over fake tensors, and the metadata it puts on nodes.

Seen on 2.13 (make_fx, FakeTensorMode, `fx.traceback` copying `current_meta["custom"]` onto each
node while node metadata is preserved). Traced on 2.11 too.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.fx import traceback as fx_traceback
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from kit._torch.fake import as_fake, fake_mode_of

DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)


def trace(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """Run `function(*inputs)` on fake tensors and return the flat graph of what it did.

    Nothing is computed and nothing is sent. Shapes become constants of the graph.
    """
    mode = fake_mode_of(inputs)
    fakes = [as_fake(mode, tensor) for tensor in inputs]
    with fx_traceback.preserve_node_meta(), _without_onednn():
        module = make_fx(function)(*fakes)
    # Passes copy the graph many times and few copies run: this one and its copies write their code when called, which
    # is a quarter of the time of a plan.
    return _LazyGraphModule.from_graphmodule(module)


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Trace the plain operators: the backward of oneDNN's fused RNN layer needs what a graph does not hold.

    Not `mkldnn.flags()`, which also sets the TF32 switch and warns of it.
    """
    enabled = torch.backends.mkldnn.set_flags(False)[0]  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(enabled)  # type: ignore[no-untyped-call]


def set_node_note(note: dict[str, str] | None) -> None:
    """Every node made from now on carries `note` as `node.meta["custom"]`; None ends it."""
    if note is None:
        fx_traceback.current_meta.pop("custom", None)
    else:
        fx_traceback.current_meta["custom"] = note


@contextmanager
def node_note(note: dict[str, str]) -> Iterator[None]:
    """Nodes made in the block carry `note`."""
    with keep_node_note():
        set_node_note(note)
        yield


@contextmanager
def keep_node_note() -> Iterator[None]:
    """The note that nodes carry is after the block what it was before."""
    before = fx_traceback.current_meta.get("custom")
    try:
        yield
    finally:
        set_node_note(before)
