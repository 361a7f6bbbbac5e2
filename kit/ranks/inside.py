"""Where this code runs: in a rank of the kit, under torchrun, or in the notebook.

The verbs ask here. The functions below the line are what the controller calls on a rank.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kit.ranks import describe as describing
from kit.ranks.cell import remember_source, run_cell
from kit.ranks.modules import ImportedModules


@dataclass(slots=True, kw_only=True)
class _Place:
    """The one rank that this process is; `namespace` holds what cells see."""

    rank: int
    world_size: int
    device: str
    namespace: dict[str, Any]
    given: frozenset[str] = frozenset()


_place: _Place | None = None
_modules = ImportedModules()


def in_rank() -> bool:
    """Whether this process is a rank: one of the kit's, or one of any initialised process group."""
    return _place is not None or _torch_group() is not None


def in_kit_rank() -> bool:
    """Whether this process is a rank that the kit has started."""
    return _place is not None


def rank_device() -> str:
    """The device of this rank, "cpu" or "cuda:<index>". Raises RuntimeError outside a rank."""
    if _place is not None:
        return _place.device
    dist = _torch_group()
    if dist is None:
        raise RuntimeError(
            "this process is no rank: expected code inside a %%ranks cell, a function given to ranks.run, or a "
            "script under torchrun after init_process_group(). Call kit.launch(2) and send the code there."
        )
    if "nccl" not in dist.get_backend():
        return "cpu"
    return f"cuda:{os.environ.get('LOCAL_RANK', dist.get_rank())}"


def _torch_group() -> Any:
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def enter(*, rank: int, world_size: int, device: str, namespace: dict[str, Any]) -> None:
    """Make this process a rank and fill the namespace of its cells."""
    global _place
    import torch

    import kit

    _place = _Place(rank=rank, world_size=world_size, device=device, namespace=namespace)
    namespace.update(
        rank=rank, world_size=world_size, device=torch.device(device), torch=torch, dist=torch.distributed, kit=kit
    )
    _place.given = frozenset(namespace)


# ---- called on a rank by the controller -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CellValue:
    """The value of a cell; shown as text when it cannot be sent."""

    value: Any


def execute(source: str, filename: str, reload: bool) -> CellValue:
    """Run a cell in the rank's namespace, with the person's modules as they are on disk now if so asked."""
    if reload:
        _modules.reload_changed(_namespace())
    return CellValue(run_cell(source, filename, _namespace()))


def push(values: dict[str, Any]) -> None:
    """Put values into the rank's namespace."""
    _namespace().update(values)


def pull(expression: str) -> Any:
    """The value of an expression in the rank's namespace."""
    remember_source(expression, "<pull>")
    return eval(compile(expression, "<pull>", "eval"), _namespace())


def hold(name: str, function: Callable[..., Any], *args: Any) -> None:
    """Keep a function's result in the rank's namespace."""
    _namespace()[name] = function(*args)


def fetch(name: str) -> Any:
    """The object of a name in the rank's namespace."""
    namespace = _namespace()
    if name not in namespace:
        raise NameError(f"name {name!r} is not defined on this rank; expected one that a %%ranks cell or push() made")
    return namespace[name]


def forget(names: tuple[str, ...]) -> None:
    """Drop results that nobody refers to any more."""
    for name in names:
        _namespace().pop(name, None)


def seed(number: int) -> int:
    """Seed the generators of this process with `number` plus its rank; the sum."""
    import random

    import numpy
    import torch

    own = number + (_place.rank if _place is not None else 0)
    random.seed(own)
    numpy.random.seed(own % 2**32)
    torch.manual_seed(own)  # those of the GPUs too
    return own


def reload() -> tuple[str, ...]:
    """Load the person's modules anew that were edited since they were imported; their names."""
    return tuple(_modules.reload_changed(_namespace()))


def edited_modules() -> tuple[str, ...]:
    """Modules of the person's that were edited since they were imported and were not told yet."""
    return _modules.take_news()


# ---- asked by the lookout, in its thread ------------------------------------------------------------------


def complete(text: str) -> list[str]:
    """Names in the rank's namespace and their attributes that begin with a text."""
    return describing.complete(text, _namespace())


def describe(name: str) -> describing.Docs:
    """What an object of the rank's namespace is."""
    return describing.describe(name, _namespace(), rank=_place.rank if _place is not None else 0)


def names(_: str) -> list[str]:
    """What the person's cells have put into the namespace."""
    given = _place.given if _place is not None else frozenset()
    return sorted(name for name in _namespace() if name not in given and not name.startswith("_"))


def _namespace() -> dict[str, Any]:
    if _place is None:
        raise RuntimeError("a reference to an object on the ranks was opened outside a rank; use its .pull()")
    return _place.namespace
