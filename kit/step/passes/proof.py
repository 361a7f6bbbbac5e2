"""What every pass must leave true, checked on the graph itself after each one.

A rewrite may send the same gradients in other packets; it may not send other gradients.
"""

import copy
from collections import Counter
from collections.abc import Callable

import torch

from kit._torch import collectives

Pass = Callable[[torch.fx.GraphModule], None]


class PassError(RuntimeError):
    """A pass that would have changed what the step does; its result is thrown away."""


def apply_pass(name: str, module: torch.fx.GraphModule, change: Pass) -> torch.fx.GraphModule:
    """Run `change` on a copy of `module`, check the copy and return it.

    Raises `PassError` when the graph is malformed or the reduced elements of a group differ.
    """
    changed = copy.deepcopy(module, _shared_tensors(module))
    try:
        change(changed)
        changed.graph.eliminate_dead_code()
        changed.graph.lint()
        changed.recompile()
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        raise PassError(f"pass {name!r} failed and was undone: {type(error).__name__}: {first}") from error
    before, after = reduced_elements(module), reduced_elements(changed)
    if before != after:
        raise PassError(
            f"pass {name!r} was undone: it reduces {dict(after)} elements by (operator, group, dtype), "
            f"expected {dict(before)} as before it"
        )
    return changed


def _shared_tensors(module: torch.fx.GraphModule) -> dict[int, object]:
    """A deepcopy memo that keeps tensors from outside the step (a teacher, a mask) as they are, not as copies."""
    held = (getattr(module, str(node.target), None) for node in module.graph.nodes if node.op == "get_attr")
    return {id(value): value for value in held if isinstance(value, torch.Tensor)}


def reduced_elements(module: torch.fx.GraphModule) -> Counter[tuple[str, str, str]]:
    """Elements put into reductions whose result is read, by operator, group and dtype."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for node in module.graph.nodes:
        is_reduction = node.target in (collectives.ALL_REDUCE, collectives.REDUCE_SCATTER)
        if is_reduction and any(wait.users for wait in node.users):
            value = node.args[0].meta["val"]
            counts[str(node.target), str(node.args[-1]), str(value.dtype)] += value.numel()
    return counts
