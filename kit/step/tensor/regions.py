"""Run a model whose modules hold parts of their parameters: what they send to each other, forward and backward.

Each collective is a pair, one for the forward and its adjoint for the backward (f and g of Megatron-LM). A value that
is whole has the whole gradient on every rank. What several colwise modules read (q, k, v) is sent once. The rank's
place on the axis stands in one constant tensor, so the graphs of all ranks are the same.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from kit._torch import collectives
from kit.step.mesh import Axis
from kit.step.strategy import StrategyError
from kit.step.tensor.split import Layout
from kit.step.tensor.styles import Change, Style
from kit.step.tensor.styles import Layout as Place

Observe = Callable[[str, torch.Tensor], None]


@contextmanager
def split_modules(
    model: nn.Module, layout: Layout, device: torch.device, observe: Observe | None = None
) -> Iterator[None]:
    """Within the block modules of the layout run on parts; their parameters must be swapped for parts.

    `observe` is told (path, output) of each output of a split module.
    Raises `StrategyError` when one of them never ran in the block, or a shape does not fit.
    """
    if layout.axis is None:
        yield
        return
    region = _Region(layout.axis, device, observe)
    paths = dict(model.named_modules())
    try:
        for path, style in layout.modules:
            module = paths[path]
            module.forward = partial(region.run, path, style, module, module.forward)
        yield
    finally:
        for path, _ in layout.modules:
            paths[path].__dict__.pop("forward", None)
    silent = [path for path, _ in layout.modules if path not in region.ran]
    if silent:
        raise StrategyError(
            f"{', '.join(silent[:4])}{', ...' if len(silent) > 4 else ''} never ran: the step does not call what the "
            "plan splits (a parent may use its weight itself, as nn.MultiheadAttention does); leave it out of the plan"
        )


class _Region:
    """The modules that run on parts, over one axis."""

    def __init__(self, axis: Axis, device: torch.device, observe: Observe | None) -> None:
        self.axis = axis
        self.ran: set[str] = set()
        self._observe = observe
        self._index = torch.tensor([axis.index], device=device)
        self._last: tuple[Any, ...] = ()  # what was sent last, how, and what came of it

    def run(
        self, path: str, style: Style, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        self.ran.add(path)
        if style.kind == "sequence":
            return forward(*args, **kwargs)
        if style.kind == "convert":
            named = {key: self._changed(path, kwargs[key], change) for key, change in style.named if key in kwargs}
            args = tuple(self._all_changed(path, args, style.takes))
            result = forward(*args, **(kwargs | named))
            if isinstance(result, tuple):
                return tuple(self._all_changed(path, result, style.gives))
            return next(self._all_changed(path, [result], style.gives))
        if len(args) != 1 or kwargs or not isinstance(args[0], torch.Tensor):
            raise StrategyError(f"{path} ({style.kind}) must be called with one tensor, as torch's own is")
        if style.kind == "colwise":
            return self._colwise(path, style, module, forward, args[0])
        return self._rowwise(path, style, module, args[0])

    def _colwise(
        self, path: str, style: Style, module: nn.Module, forward: Callable[..., Any], x: torch.Tensor
    ) -> torch.Tensor:
        x = self._entered(path, x, taken(style))
        if isinstance(module, nn.Linear):
            _require_features(path, x, module)
        return self._told(path, self._changed(path, forward(x), style.gives[0]))

    def _rowwise(self, path: str, style: Style, module: Any, x: torch.Tensor) -> torch.Tensor:
        out = given(style)
        if isinstance(module, nn.Embedding):
            return self._told(path, self._reduced(path, self._looked_up(module, x), out))
        x = self._changed(path, x, style.takes[0])
        _require_features(path, x, module)
        whole = self._reduced(path, nn.functional.linear(x, module.weight), out)
        return self._told(path, whole if module.bias is None else whole + module.bias)

    def _looked_up(self, module: nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the part of the vocabulary that this rank has, zeros for the others."""
        local = ids - self._index * module.weight.shape[0]
        absent = (local < 0) | (local >= module.weight.shape[0])
        rows = nn.functional.embedding(local.masked_fill(absent, 0), module.weight)
        if module.padding_idx is not None:
            rows = torch.where((ids == module.padding_idx).unsqueeze(-1), rows.detach(), rows)
        return rows.masked_fill(absent.unsqueeze(-1), 0)

    def _entered(self, path: str, x: torch.Tensor, kept: Place) -> torch.Tensor:
        """`x` as each colwise module reads it: whole, its gradient a sum over ranks."""
        key = (kept, x._version, torch.is_grad_enabled())
        if not (self._last and self._last[0] is x and self._last[1] == key):
            self._last = (x, key, self._sent(path, x, kept))
        return self._last[2]  # type: ignore[no-any-return]

    def _sent(self, path: str, x: torch.Tensor, kept: Place) -> torch.Tensor:
        if kept is None:
            return _Copy.apply(x, self.axis)  # type: ignore[no-any-return,no-untyped-call]
        return _Gather.apply(x, kept % x.dim(), self.axis, None)  # type: ignore[no-any-return,no-untyped-call]

    def _reduced(self, path: str, x: torch.Tensor, out: Place) -> torch.Tensor:
        if out is None:
            return _Reduce.apply(x, self.axis)  # type: ignore[no-any-return,no-untyped-call]
        dim = self._divided(path, x, out)
        return _ReduceScatter.apply(x, dim, self.axis)  # type: ignore[no-any-return,no-untyped-call]

    def _changed(self, path: str, x: Any, change: Change) -> Any:
        """A value that is kept one way, kept another way; its gradient likewise."""
        if change is None or not isinstance(x, torch.Tensor):
            return x
        have, want = (None if place is None else place % x.dim() for place in change)
        if have == want:
            return x
        if have is None and want is not None:
            return _Own.apply(x, self._divided(path, x, want), self.axis, self._index)  # type: ignore[no-untyped-call]
        if want is None:
            return _Gather.apply(x, have, self.axis, self._index)  # type: ignore[no-untyped-call]
        raise StrategyError(
            f"{path} turns parts of dim {have} into parts of dim {want}, which is an all-to-all and has no static form "
            "here; go through Replicate()"
        )

    def _all_changed(self, path: str, values: Sequence[Any], changes: Sequence[Change]) -> Iterator[Any]:
        if len(changes) > len(values):
            raise StrategyError(f"{path} has {len(values)} values and the plan gives layouts for {len(changes)}")
        for number, value in enumerate(values):
            yield self._changed(path, value, changes[number] if number < len(changes) else None)

    def _divided(self, path: str, x: torch.Tensor, dim: int) -> int:
        dim %= x.dim()
        if x.shape[dim] % self.axis.size:
            raise StrategyError(
                f"{path}: dim {dim} of {list(x.shape)} does not divide over {self.axis.size} ranks; expected a "
                f"multiple of {self.axis.size}"
            )
        return dim

    def _told(self, path: str, value: torch.Tensor) -> torch.Tensor:
        if self._observe is not None:
            self._observe(path, value)
        return value


def taken(style: Style) -> Place:
    """How the first input of a split module is kept when it comes."""
    change = style.takes[0]
    return None if change is None else change[0]


def given(style: Style) -> Place:
    """How the output of a split module is kept."""
    change = style.gives[0]
    return None if change is None else change[1]


def _require_features(path: str, x: torch.Tensor, module: Any) -> None:
    if x.shape[-1] != module.weight.shape[1]:
        raise StrategyError(
            f"{path}: its input is {list(x.shape)} and its part of the weight {list(module.weight.shape)} takes "
            f"{module.weight.shape[1]} features; what feeds a rowwise module must come from a colwise one (or give it "
            "'rowwise_rep'), and what feeds a colwise one must be whole"
        )


def _gathered(x: torch.Tensor, dim: int, axis: Axis) -> torch.Tensor:
    whole = collectives.all_gather(x.contiguous(), axis.group, axis.size)
    return whole if dim == 0 else torch.cat(whole.chunk(axis.size), dim)


def _scattered(x: torch.Tensor, dim: int, axis: Axis) -> torch.Tensor:
    parts = x if dim == 0 else torch.cat(x.chunk(axis.size, dim))
    return collectives.reduce_scatter_sum(parts.contiguous(), axis.group, axis.size)


def _own(x: torch.Tensor, dim: int, axis: Axis, index: torch.Tensor) -> torch.Tensor:
    return torch.unflatten(x, dim, (axis.size, -1)).index_select(dim, index).squeeze(dim)


class _Copy(torch.autograd.Function):
    """Identity; the gradient is summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis) -> torch.Tensor:
        ctx.axis = axis
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return collectives.all_reduce_sum(grads[0].contiguous(), ctx.axis.group), None


class _Reduce(torch.autograd.Function):
    """Sum over ranks; the gradient goes through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis) -> torch.Tensor:
        return collectives.all_reduce_sum(x, axis.group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


class _Gather(torch.autograd.Function):
    """Parts of a dim to the whole; the gradient is reduce-scattered, or, given the rank's index, cut (it is whole)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, axis: Axis, index: torch.Tensor | None) -> torch.Tensor:
        ctx.dim, ctx.axis, ctx.index = dim, axis, index
        return _gathered(x, dim, axis)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if ctx.index is None:
            return _scattered(grads[0], ctx.dim, ctx.axis), None, None, None
        return _own(grads[0], ctx.dim, ctx.axis, ctx.index), None, None, None


class _ReduceScatter(torch.autograd.Function):
    """Sum over ranks, of which each keeps its part of a dim; the gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, axis: Axis) -> torch.Tensor:
        ctx.dim, ctx.axis = dim, axis
        return _scattered(x, dim, axis)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _gathered(grads[0], ctx.dim, ctx.axis), None, None


class _Own(torch.autograd.Function):
    """This rank's part of a whole value; the gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, axis: Axis, index: torch.Tensor) -> torch.Tensor:
        ctx.dim, ctx.axis = dim, axis
        return _own(x, dim, axis, index)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _gathered(grads[0], ctx.dim, ctx.axis), None, None, None
