"""The table strategy x way to compile, made by running every cell on the ranks there are."""

import fnmatch
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from kit import progress
from kit._torch import watch
from kit.step.static_module import compile_module
from kit.step.strategy import StrategyError
from kit.step.trace import Loss
from kit.step.verdict import Call, explain_model
from kit.step.verdict_record import Cell, Compatibility

EAGER, WHOLE, BLOCKS = "eager", "whole-model compile", "per-block compile"
WAYS = (EAGER, WHOLE, BLOCKS)
_OURS = {"kit DDP": "ddp", "kit FSDP": "fsdp"}
STRATEGIES = ("DDP", "FSDP2", *_OURS)


def compatibility_of(
    make_model: Callable[[], nn.Module],
    batch: Any,
    loss: Loss | None,
    call: Call,
    *,
    blocks: str | None = None,
) -> Compatibility:
    """The verdict on each strategy in each way, on a fresh model each. A collective call.

    `blocks`: a pattern of module paths that are sharded and compiled one by one; None takes the parts of the
    longest `ModuleList`. Raises `StrategyError` without a process group or without blocks.
    """
    if not dist.is_initialized():
        raise StrategyError(
            "no process group exists in this process; use kit.launch(2), or torchrun with "
            "torch.distributed.init_process_group()"
        )
    cells = []
    with progress.task("compatibility", total=len(STRATEGIES) * len(WAYS)) as work:
        for strategy in STRATEGIES:
            for way in WAYS:
                cells.append(_cell(strategy, way, make_model, batch, loss, call, blocks))
                work.advance(f"{strategy}, {way}")
    name = type(watch.without_compile(make_model())).__name__
    return Compatibility(model=name, world_size=dist.get_world_size(), cells=tuple(cells))


def _cell(
    strategy: str,
    way: str,
    make_model: Callable[[], nn.Module],
    batch: Any,
    loss: Loss | None,
    call: Call,
    blocks: str | None,
) -> Cell:
    if strategy in _OURS:
        if way == BLOCKS:
            return Cell(strategy=strategy, way=way, verdict=None, note="not needed: the whole is one graph")
        executor = "eager" if way == EAGER else "aot_eager"
        compiled = compile_module(make_model(), strategy=_OURS[strategy], executor=executor)
        return Cell(strategy=strategy, way=way, verdict=explain_model(compiled, batch, loss, call))
    plain = make_model()
    parts = blocks_of(plain, blocks)
    if way == BLOCKS:
        for part in parts:
            part.compile(backend="aot_eager")  # which backend does not matter, the graphs do
    model = DistributedDataParallel(plain) if strategy == "DDP" else _sharded(plain, parts)
    return Cell(strategy=strategy, way=way, verdict=explain_model(model, batch, loss, call, as_it_is=way == EAGER))


def _sharded(model: nn.Module, parts: list[nn.Module]) -> nn.Module:
    for part in parts:
        fully_shard(part)
    fully_shard(model)
    return model


def blocks_of(model: nn.Module, pattern: str | None) -> list[nn.Module]:
    """The modules whose path matches, or the parts of the longest `ModuleList`. Raises `StrategyError` for none."""
    if pattern is None:
        lists = [part for part in model.modules() if isinstance(part, nn.ModuleList | nn.Sequential)]
        found = list(max(lists, key=len)) if lists else []
    else:
        found = [part for path, part in model.named_modules() if path and fnmatch.fnmatchcase(path, pattern)]
    if not found:
        seen = "has no ModuleList" if pattern is None else f"has no module {pattern!r}"
        names = ", ".join(name for name, _ in model.named_children())
        raise StrategyError(f"{type(model).__name__} {seen}; pass blocks= a pattern of paths, its parts are {names}")
    return found
