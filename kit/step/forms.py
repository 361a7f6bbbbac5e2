"""Count one model in each form that torch has or had for it, beside the graph of the whole training step.

The forms hold different things (a forward, a forward with its backward, a step), so the table says what. A form that a
model does not have is a row with its reason.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from kit._torch.forms import TRACE_ERRORS, dynamo_graph, read_joint_graph, script_counts, symbolic_counts
from kit.graph.from_fx import graph_of
from kit.graph.record import Graph, Kind
from kit.step.lower import Stage
from kit.step.start_record import Form, Representations
from kit.step.trace import Loss

_FORWARD = "forward of the model"
_NO_WORK = (Kind.INPUT, Kind.CONSTANT, Kind.OUTPUT, Kind.GETITEM)
Counts = tuple[int, int, int]


def representations(model: nn.Module, loss: Loss, batch: Any, *, stages: Sequence[Stage] = ()) -> Representations:
    """Nodes and bytes of a plain model in each form; `stages` are those of a compiled step of the same model.

    The model runs three times (parameters and buffers are put back) and must not be sharded.
    """
    kept = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    try:
        args, kwargs = _call_of(model, loss, batch)
        forms = _forms_of_the_model(model, loss, batch, args, kwargs)
    finally:
        model.load_state_dict(kept)
    holds = "forward, loss, backward, collectives, optimizer"
    if stages:
        forms.append(_form("whole step, as traced", holds, partial(_counts_of_stage, stages[0])))
        forms += [
            _form(f"after: {stage.name}", holds, partial(_counts_of_stage, stage), note=stage.failure)
            for stage in stages[1:]
        ]
    return Representations(model=type(model).__name__, forms=tuple(forms))


def _forms_of_the_model(
    model: nn.Module, loss: Loss, batch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Form]:
    def whole(given: Any) -> Any:
        result = loss(model, given)
        return result[0] / result[1] if isinstance(result, tuple) else result

    old, one = "deprecated by torch, shown for comparison; values in lists are not counted", "a module is one node"
    both = "forward, loss, backward"
    return [
        _form("TorchScript trace", _FORWARD, lambda: script_counts(model, args, kwargs), note=old),
        _form("symbolic FX", _FORWARD, lambda: symbolic_counts(model, args, kwargs), note=one),
        _form("Dynamo graph", _FORWARD, lambda: _counts_of_module(dynamo_graph(model, args, kwargs))),
        _form("joint graph (AOT)", both, lambda: read_joint_graph(whole, (batch,), _counts_of_module)),
    ]


def _form(name: str, holds: str, count: Callable[[], Counts], *, note: str = "") -> Form:
    try:
        nodes, operators, made = count()
    except TRACE_ERRORS as error:
        first = (str(error).strip().splitlines() or [""])[0]
        return Form(name=name, holds=holds, why=f"{type(error).__name__}: {first[:200]}{f' ({note})' if note else ''}")
    return Form(name=name, holds=holds, nodes=nodes, operators=operators, bytes_made=made, why=note)


def _counts_of_module(module: torch.fx.GraphModule) -> Counts:
    return _counts(graph_of(module, name="form"))


def _counts_of_stage(stage: Stage) -> Counts:
    return _counts(stage.graph)


def _counts(graph: Graph) -> Counts:
    works = np.array([kind not in _NO_WORK for kind in graph.kinds], bool)
    makes = np.array([kind not in (Kind.INPUT, Kind.CONSTANT, Kind.OUTPUT, Kind.WAIT) for kind in graph.kinds], bool)
    return len(graph), int(works.sum()), int(graph.bytes_out[makes].sum())


def _call_of(model: nn.Module, loss: Loss, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with which the loss calls the model."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((args, kwargs))

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with torch.no_grad():
            loss(model, batch)
    finally:
        hook.remove()
    if not calls:
        raise ValueError("loss(model, batch) does not call the model; expected model(...) inside it")
    return calls[0]
