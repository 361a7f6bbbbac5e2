"""Capture the forward graph of a model with torch.export.

torch.export is the strictest of torch's captures: it gives one whole graph or an error, and keeps
composite operators, module paths and source lines, which is what cutting and drawing need. Its errors
speak of guards and symbols; here they become one error that names the user's own line.
"""

import contextlib
import io
import logging
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from kit.graph.capture_record import Break, Capture
from kit.graph.from_fx import GraphError, graph_of
from kit.graph.provenance import user_frame

# What the errors of torch (2.11 to 2.13) say when Python asks for the value of a tensor.
_DATA_DEPENDENT = (
    "data-dependent",
    "data dependent",
    "datadependent",
    "dynamic control flow",
    "_local_scalar_dense",
    "aten.equal",
    "aten.item",
)

# Loggers of torch that write pages about what becomes one CaptureError here.
_LOGGERS = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor", "torch.export")


class CaptureError(GraphError):
    """A model that does not give one graph. `found` is the place, None when no user line is known."""

    def __init__(self, message: str, *, found: Break | None = None) -> None:
        super().__init__(message)
        self.found = found


def capture(model: torch.nn.Module, batch: object) -> Capture:
    """The forward graph of `model` for `batch`, priced, with module paths and source lines.

    `batch`: a tensor, a tuple (positional arguments) or a dict (keyword arguments); nothing is computed
    with it, only shapes and dtypes count. The model is captured in the mode it is in (`model.train()` is
    what training wants) and left as it was. Takes about two seconds for a small model.
    Raises `CaptureError` when Python code of the model depends on the values of a tensor, or the model
    fails; `TypeError` for another kind of batch.
    """
    args, kwargs = call_arguments(batch)
    name = type(model).__name__
    gm = export_module(model, args, kwargs)
    try:
        graph = graph_of(gm, name=name)
    except GraphError as error:
        raise CaptureError(str(error)) from error
    return Capture(model=name, graphs=(graph,), breaks=())


def export_module(model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.fx.GraphModule:
    """The exported graph as a module that shares the parameters of `model`; no guard nodes in it.

    Raises `CaptureError` as `capture` does.
    """
    try:
        with _quiet_torch():
            exported = torch.export.export(model, args, dict(kwargs))
    except Exception as error:  # torch raises a dozen unrelated types here; all become one, with the cause kept
        raise _explain(model, error) from error
    gm = exported.module(check_guards=False)
    if not isinstance(gm, torch.fx.GraphModule):
        raise CaptureError(f"torch.export gave a {type(gm).__name__}, expected a GraphModule; try torch 2.11 to 2.13")
    for node in list(gm.graph.nodes):
        if node.op == "call_module" and "_guards_fn" in str(node.target):
            gm.graph.erase_node(node)
    gm.recompile()
    return gm


def call_arguments(batch: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments of a model for a batch: a tensor, a tuple or a dict."""
    if isinstance(batch, torch.Tensor):
        return (batch,), {}
    if isinstance(batch, (tuple, list)):
        return tuple(batch), {}
    if isinstance(batch, Mapping):
        return (), dict(batch)
    raise TypeError(
        f"batch is a {type(batch).__name__}; expected a tensor, a tuple of positional arguments or a dict of "
        "keyword arguments"
    )


@contextlib.contextmanager
def _quiet_torch() -> Iterator[None]:
    """Hold back what torch writes about a failing export; after a good one stderr gets its text."""
    written = io.StringIO()
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(_below_warning)
    try:
        with contextlib.redirect_stderr(written):
            yield
        sys.stderr.write(written.getvalue())
    finally:
        for logger in loggers:
            logger.removeFilter(_below_warning)


def _below_warning(record: logging.LogRecord) -> bool:
    """Lets through only what somebody asked for with TORCH_LOGS."""
    return record.levelno < logging.WARNING


def _explain(model: torch.nn.Module, error: Exception) -> CaptureError:
    """One error with the user's line: a value asked for by Python, or a failure of the model itself."""
    name = type(model).__name__
    chain = list(_causes(error))
    text = " ".join(f"{type(e).__name__} {e}" for e in chain).lower()
    reason = str(chain[-1]).strip().split("\n")[0] or type(chain[-1]).__name__
    found = _place(chain, reason)
    where = f"{found.file}:{found.line}: {found.code}" if found else "no line of the model is known"
    if any(mark in text for mark in _DATA_DEPENDENT):
        return CaptureError(
            f"{name} gives no single graph: {where}: Python asks for the value of a tensor, which a static "
            "graph does not have; expected code whose path is the same for all batches. Use torch.where or "
            "torch.cond for the choice, or move it out of the model",
            found=found,
        )
    return CaptureError(
        f"{name} failed while it was captured: {where}: {type(chain[-1]).__name__}: {reason}; expected a "
        "model that runs with this batch. Call model(batch) once to see the error by itself",
        found=found,
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from, outermost first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _place(chain: list[BaseException], reason: str) -> Break | None:
    """The innermost line of the user in the error's own tracebacks."""
    for error in reversed(chain):
        frames = traceback.extract_tb(error.__traceback__)
        frame = user_frame([(f.filename, f.lineno or 0, f.line or "") for f in frames])
        if frame is not None:
            return Break(reason=reason, file=frame[0], line=frame[1], code=frame[2])
    return None
