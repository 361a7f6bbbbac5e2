"""What every pass must leave true, checked on the graph itself after each one.

A rewrite may send the same gradients in other packets; it may not send other gradients, compute other
numbers, read what has not arrived, or take more memory than it is allowed. Each check takes the graph
before and after, so it blames the pass and not the model.
"""

import copy
from collections import Counter
from collections.abc import Sequence

import torch
from torch.fx import GraphModule

from kit._torch import collectives
from kit.step.passes.choice import Pass
from kit.step.passes.memory import Memory
from kit.step.passes.values import NotPlayedError, first_difference, results_of

PEAK_SLACK = 0.05  # the model of memory is no better than that


class PassError(RuntimeError):
    """A pass that would have changed what the step does; its result is thrown away."""


def apply_pass(name: str, module: GraphModule, change: Pass) -> GraphModule:
    """Run `change` on a copy of `module`, check the copy and return it.

    Raises `PassError` when the graph is malformed, the reduced elements of a group differ, or a value is read or
    overwritten while it is sent.
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
    races = Counter(read_too_early(changed))
    if races and (races := races - Counter(read_too_early(module))):
        raise PassError(f"pass {name!r} was undone: {next(iter(races))}")
    return changed


def require_peak(name: str, before: int, after: int, *, may_add_bytes: float) -> None:
    """Raise `PassError` when the predicted peak (bytes) grew by more than the pass may add."""
    limit = before * (1 + PEAK_SLACK) + may_add_bytes
    if after > limit:
        raise PassError(
            f"pass {name!r} was undone: the predicted peak goes from {before / 1e6:.4g} to {after / 1e6:.4g} MB, "
            f"at most {limit / 1e6:.4g} MB is allowed for it"
        )


class Values:
    """Proves that a graph gives the same numbers as before, on real tensors.

    `inputs`: those of the graph; None for a step that is too large, or that is only planned.
    """

    def __init__(self, inputs: Sequence[torch.Tensor] | None) -> None:
        self._inputs = inputs
        self._expected: list[torch.Tensor] | None = None

    def difference(self, before: GraphModule, after: GraphModule) -> str:
        """What `after` gives differently from `before`, in words; "" when nothing, or when it cannot be told.

        `before` is run once only: whatever is compared later is compared with it.
        """
        placeholders = sum(node.op == "placeholder" for node in before.graph.nodes)
        if self._inputs is None or placeholders != len(self._inputs):
            return ""  # a graph that takes gradients from outside has inputs that no example was given for
        if self._expected is None:
            try:
                self._expected = results_of(before, self._inputs)
            except NotPlayedError:
                self._inputs = None
                return ""
        try:
            results = results_of(after, self._inputs)
        except Exception as error:
            return f"its graph does not run: {(str(error).splitlines() or [''])[0]}"
        difference = first_difference(self._expected, results)
        return f"on the same tensors {difference}" if difference else ""

    def require_equal(self, name: str, before: GraphModule, after: GraphModule) -> None:
        """Raise `PassError` when `after` gives other results than `before`."""
        difference = self.difference(before, after)
        if difference:
            raise PassError(f"pass {name!r} was undone: {difference}")


def reduced_elements(module: GraphModule) -> Counter[tuple[str, str, str]]:
    """Elements put into reductions whose result is read, by operator, group and dtype (so bytes are the same too)."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for node in module.graph.nodes:
        is_reduction = node.target in (collectives.ALL_REDUCE, collectives.REDUCE_SCATTER)
        if is_reduction and any(wait.users for wait in node.users):
            value = node.args[0].meta["val"]
            counts[str(node.target), str(node.args[-1]), str(value.dtype)] += value.numel()
    return counts


def read_too_early(module: GraphModule) -> list[str]:
    """Collectives whose result is read without a wait, or whose input is written before it has arrived, in words."""
    memory = Memory(module)
    found = []
    for node in module.graph.nodes:
        if not collectives.is_collective(node.target):
            continue
        waits = [user for user in node.users if user.target is collectives.WAIT]
        if len(waits) != len(node.users):
            found.append(f"the result of {node.target} is read without a wait")
        arrived = max((memory.place[wait] for wait in waits), default=len(memory.place))
        if memory.is_written_between(memory.of(node.args[0]), memory.place[node], arrived):
            found.append(f"what {node.target} sends is written before it has arrived")
    return found


def _shared_tensors(module: GraphModule) -> dict[int, object]:
    """A deepcopy memo that keeps tensors from outside the step (a teacher, a mask) as they are, not as copies."""
    held = (getattr(module, str(node.target), None) for node in module.graph.nodes if node.op == "get_attr")
    return {id(value): value for value in held if isinstance(value, torch.Tensor)}
