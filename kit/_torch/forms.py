"""The older and inner graphs of a model: TorchScript trace, symbolic FX, Dynamo's, AOTAutograd's joint graph.

Seen on 2.11 to 2.13: `torch.jit.trace` (deprecated, warns), `torch.fx.symbolic_trace` with `ShapeProp`, a backend
given to `torch.compile`, `partition_fn` of `torch._dynamo.backends.common.aot_autograd`.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.fx.passes.shape_prop import ShapeProp

_T = TypeVar("_T")
TRACE_ERRORS = (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError, torch.fx.proxy.TraceError)


def script_counts(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int, int]:
    """Nodes, operators and bytes made of the model's TorchScript trace, modules inlined."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it is deprecated, and so do we
        traced = torch.jit.trace(model, args, example_kwarg_inputs=kwargs or None, check_trace=False)  # type: ignore[no-untyped-call]
        graph = traced.inlined_graph
    nodes = list(graph.nodes())
    operators = [node for node in nodes if node.kind().startswith("aten::")]
    made = [output for node in operators for output in node.outputs()]
    return len(nodes), len(operators), sum(map(_script_bytes, made))


def _script_bytes(value: Any) -> int:
    kind = value.type()
    sizes = kind.sizes() if isinstance(kind, torch.TensorType) else None
    dtype = kind.dtype() if isinstance(kind, torch.TensorType) else None
    return int(torch.Size(sizes).numel() * dtype.itemsize) if sizes is not None and dtype is not None else 0


def symbolic_counts(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int, int]:
    """Nodes, operators (calls) and bytes made of the model under `torch.fx.symbolic_trace`; a module is one call."""
    module = torch.fx.symbolic_trace(model)
    nodes = list(module.graph.nodes)
    calls = [node for node in nodes if node.op.startswith("call_")]
    names = [node.target for node in nodes if node.op == "placeholder"]
    with torch.no_grad():
        ShapeProp(module).propagate(*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs))
    made = [meta for node in calls for meta in _tensor_metas(node.meta.get("tensor_meta"))]
    return len(nodes), len(calls), sum(meta.shape.numel() * meta.dtype.itemsize for meta in made)


def _tensor_metas(meta: Any) -> list[Any]:
    if meta is None:
        return []
    return [meta] if hasattr(meta, "dtype") else [one for item in meta for one in _tensor_metas(item)]


def dynamo_graph(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.GraphModule:
    """The one graph that Dynamo makes of `function(*args, **kwargs)`; it runs once."""
    kept: list[torch.fx.GraphModule] = []

    def keep(module: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        kept.append(module)
        return module.forward

    torch.compiler.reset()
    torch.compile(function, backend=keep, fullgraph=True, dynamic=False)(*args, **kwargs)
    torch.compiler.reset()
    if not kept:
        raise RuntimeError("Dynamo made no graph, as no operator runs")
    return kept[0]


def read_joint_graph(function: Callable[..., Any], args: tuple[Any, ...], read: Callable[[Any], _T]) -> _T:
    """`read` of AOTAutograd's graph of `function(*args)` and its backward in one; only the forward runs, once.

    It is read before it is partitioned, which changes it.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    kept: list[_T] = []

    def partition(module: torch.fx.GraphModule, *rest: Any, **options: Any) -> Any:
        kept.append(read(module))
        return min_cut_rematerialization_partition(module, *rest, **options)

    def run(module: torch.fx.GraphModule, _: Any) -> Any:
        def boxed(arguments: list[Any]) -> Any:  # the calling convention of AOTAutograd: it may free what it was given
            return module(*arguments)

        boxed._boxed_call = True  # type: ignore[attr-defined]
        return boxed

    torch.compiler.reset()
    backend = aot_autograd(fw_compiler=run, bw_compiler=run, partition_fn=partition)
    torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(*args)
    torch.compiler.reset()
    if not kept:
        raise RuntimeError("torch made no joint graph, as nothing in the model is trained")
    return kept[0]
