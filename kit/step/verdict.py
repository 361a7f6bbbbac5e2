"""Say whether a model trains as one static graph, by running it and counting what runs inside graphs.

A model that torch.compile has not seen is compiled here first, since that is the question. A compiled one, whole
or by blocks, is run as it is, with its graphs executed node by node. Gradients, buffers and random state are
put back; compiled code in memory is dropped, so what was compiled compiles again at its next call.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from kit._torch import trees, watch
from kit._torch.watch import Ran, Watch
from kit.graph.record import Kind
from kit.step.build import CUDA_GRAPH
from kit.step.compiled import CompiledStep
from kit.step.provenance import is_user_file
from kit.step.static_module import DistributedGraphModule
from kit.step.trace import Loss
from kit.step.verdict_record import GraphBreak, Verdict
from kit.step.verdict_words import reasons_of

PARTS = ("forward", "backward")
_FEED = ("aten.fill_", "aten._local_scalar_dense")  # the learning rate into the graph's input
WARM_UP_RUNS = 2  # the first compiles; DDP groups its buckets anew before the second

Call = Callable[[nn.Module, Any], Any]


def explain_model(model: Any, batch: Any, loss: Loss | None, call: Call, *, as_it_is: bool = False) -> Verdict:
    """The verdict on a model or step. A collective call where the model is distributed.

    `call(model, batch)` gives the output and is used without a `loss`; with one, the loss makes the call and the
    gradients. `as_it_is`: do not compile what is not compiled.
    """
    if isinstance(model, CompiledStep):
        return _explain_step(model, batch)
    kind = kind_of(model)
    is_ours = isinstance(model, DistributedGraphModule)
    batch = _contiguous(batch) if is_ours else batch
    # A torch.compile(model, fullgraph=True) is compiled anew without it: it would raise at a break, not count it.
    inner = watch.without_compile(model)
    runs = model if is_ours or as_it_is or (kind.compiled and inner is model) else watch.compiled(inner)
    try:
        with _undone(model):
            seen = _observe(lambda seen: _run(runs, batch, loss, call, seen), lambda: _own_graphs(model))
    except watch.UNSUPPORTED as error:
        return _failed(kind.words, str(error))
    if is_ours:
        seen.graphs = [Ran(part=part) for _, part in zip(model.runs, PARTS, strict=False)]
    words = kind.words if is_ours or as_it_is or kind.compiled else f"{kind.words} under torch.compile"
    return _verdict(words, seen, kind.name)


@dataclass(frozen=True, slots=True)
class Kindness:
    """What a model is: its `name` for the reasons, its description in `words`, whether it is `compiled`."""

    name: str
    words: str
    compiled: bool


def kind_of(model: nn.Module) -> Kindness:
    """What kind of distributed and compiled thing a model is."""
    whole = watch.is_compiled_whole(model)
    inner = watch.without_compile(model)
    parts = [part for part in inner.modules() if part is not inner and watch.is_compiled_whole(part)]
    if isinstance(inner, DistributedGraphModule):
        return Kindness("kit", f"DistributedGraphModule of {type(inner.original).__name__}", True)
    if isinstance(inner, DistributedDataParallel):
        name, words = "ddp", f"DDP of {type(watch.without_compile(inner.module)).__name__}"
    elif any(isinstance(part, FSDPModule) for part in inner.modules()):
        name, words = "fsdp", f"FSDP2 of {type(inner).__name__.removeprefix('FSDP')}"
    else:
        name, words = "plain", type(inner).__name__
    if whole:
        words += " under torch.compile"
    elif parts:
        words += f" with {len(parts)} parts under torch.compile"
    return Kindness(name, words, whole or bool(parts))


def _observe(run: Callable[[Watch | None], Any], own: Callable[[], list[tuple[Any, str]]]) -> Watch:
    with watch.compiles_to_watched_graphs():
        for _ in range(WARM_UP_RUNS):
            run(None)
        with watch.watching(own()) as seen:
            run(seen)
    return seen


def _contiguous(batch: Any) -> Any:
    """As the kit's graphs take it: laying a batch out anew is feeding, not a part of the model."""
    return trees.mapped(lambda leaf: leaf.contiguous() if isinstance(leaf, torch.Tensor) else leaf, batch)


def _own_graphs(model: Any) -> list[tuple[nn.Module, str]]:
    """The kit's graphs that run without torch.compile, with their parts."""
    if not isinstance(model, CompiledStep | DistributedGraphModule):
        return []
    return [(run, part) for run, part in zip(model.runs, PARTS, strict=False) if isinstance(run, nn.Module)]


class _Tap(nn.Module):
    """Stands for the model in the user's loss: counts what the model runs, cuts the gradient at its output."""

    def __init__(self, model: nn.Module, seen: Watch | None) -> None:
        super().__init__()
        self._taps: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._target = (model,)
        self._seen = seen

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with _counted(self._seen):
            output = self._target[0](*args, **kwargs)
        return trees.mapped(self._cut, output)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattribute__("_target")[0], name)

    def _cut(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.requires_grad:
            return leaf
        end = leaf.detach().requires_grad_()
        self._taps.append((leaf, end))
        return end

    def backward(self) -> None:
        """The model's own backward, from the gradients at its outputs; ones where there is no loss."""
        pairs = [(out, torch.ones_like(out) if end.grad is None else end.grad) for out, end in self._taps]
        if pairs:
            with _counted(self._seen):
                outputs, gradients = zip(*pairs, strict=True)
                torch.autograd.backward(outputs, gradients)


def _run(model: Any, batch: Any, loss: Loss | None, call: Call, seen: Watch | None) -> None:
    for parameter in model.parameters():
        parameter.grad = None  # then a gradient is stored, not added: that add is no part of the model
    tap = _Tap(model, seen)
    if loss is None:
        call(tap, batch)
    else:
        value = loss(tap, batch)
        total = value[0] if isinstance(value, tuple) else value
        if total.requires_grad:
            torch.autograd.backward([total])
    tap.backward()


def _counted(seen: Watch | None) -> Any:
    return nullcontext() if seen is None else seen.counted()


@contextmanager
def _undone(model: nn.Module) -> Iterator[None]:
    """Put gradients, buffers and random state back as they were."""
    parameters = list(model.parameters())
    gradients = [(p.grad, None if p.grad is None else p.grad.clone()) for p in parameters]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = sorted({p.device.index for p in parameters if p.is_cuda})
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, (gradient, value) in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient if gradient is None or value is None else gradient.copy_(value)
                for buffer, value in buffers:
                    buffer.copy_(value)


def _explain_step(step: CompiledStep, batch: Any) -> Verdict:
    batch = _contiguous(batch)
    window = list(batch) if isinstance(batch, list) else [batch]
    name = "eager step" if step.plan.eager_optimizer else "step"
    if step.executor == CUDA_GRAPH:  # a replay shows no operators; they are those of the graph it was captured from
        seen = Watch(graphs=[Ran(part="forward")])
        kinds = step.graph.kinds
        seen.inside = ["aten.op"] * sum(kind is Kind.COMPUTE for kind in kinds)
        seen.inside += ["c10d.op"] * sum(kind is Kind.COLLECTIVE for kind in kinds)
        seen.outside = ["optimizer.step"] if step.plan.eager_optimizer else []
        return _verdict("CompiledStep in a CUDA graph", seen, name)

    def run(seen: Watch | None) -> None:
        with _counted(seen):
            step(*copy.copy(window))

    with step.undone():
        seen = _observe(run, lambda: _own_graphs(step))
    seen.graphs = [Ran(part="forward")]
    seen.outside = [name for name in seen.outside if name not in _FEED]
    return _verdict(f"CompiledStep ({step.executor})", seen, name)


def _verdict(words: str, seen: Watch, name: str) -> Verdict:
    forward = [ran for ran in seen.graphs if ran.part == "forward"]
    breaks = tuple(dict.fromkeys(_break_of(ran) for ran in seen.graphs if ran.reason))
    backward = len(seen.graphs) - len(forward)
    is_static = len(forward) == 1 and backward <= 1 and not breaks and not seen.outside
    counts = Verdict(
        kind=words,
        is_static=is_static,
        forward_graphs=len(forward),
        backward_graphs=backward,
        breaks=breaks,
        operators_inside=len(seen.inside),
        operators_outside=len(seen.outside),
        collectives_inside=seen.collectives_inside,
        collectives_outside=seen.collectives_outside,
        reasons=(),
    )
    return reasons_of(counts, name)


def _break_of(ran: Ran) -> GraphBreak:
    return GraphBreak(source=_users_line(ran.stack), reason=watch.in_words(ran.reason))


def _users_line(stack: Sequence[Any]) -> str:
    frames = [frame for frame in stack if is_user_file(frame.filename)] or list(stack)
    return f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""


def _failed(words: str, text: str) -> Verdict:
    return Verdict(
        kind=words, is_static=False, forward_graphs=0, backward_graphs=0, breaks=(), operators_inside=0,
        operators_outside=0, collectives_inside=0, collectives_outside=0,
        reasons=(f"torch.compile refuses it: {watch.in_words(text)}.",),
    )  # fmt: skip
