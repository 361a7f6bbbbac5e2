"""Compare what ranks are about to do before a collective does it.

gloo ends a process when ranks meet with different sizes, and gives garbage without a word when the bytes happen to be
equal. So a collective that the user's own code calls by name first says over the store what it is; when ranks
differ, all of them raise and none has begun, and the group stays usable. Only waiting calls of user code are
checked: not those of torch or the kit, not `async_op=True`, not compiled or traced code, not send and receive.
"""

import functools
import inspect
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from kit._torch import groups
from kit.ranks.errors import MAX_RANKS_SHOWN
from kit.ranks.failure import is_users, users_line

# What must be equal on all ranks, by argument name. Sizes of the others may differ rightly.
_COMPARED = {
    "all_gather": ("tensor",),
    "all_gather_into_tensor": ("output_tensor", "input_tensor"),
    "all_gather_object": (),
    "all_reduce": ("tensor", "op"),
    "all_to_all": (),
    "all_to_all_single": (),
    "barrier": (),
    "broadcast": ("tensor", "src", "group_src"),
    "broadcast_object_list": (),
    "gather": ("tensor", "dst", "group_dst"),
    "gather_object": (),
    "reduce": ("tensor", "dst", "group_dst", "op"),
    "reduce_scatter": ("output", "op"),
    "reduce_scatter_tensor": ("output", "input", "op"),
    "scatter": ("tensor", "src", "group_src"),
    "scatter_object_list": (),
}


class CollectiveMismatchError(RuntimeError):
    """Ranks met in collectives that do not fit together; none of them was begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparing:
    """A collective that waits for the others to say what they do; `number` is the one torch will give it in `group`.

    `group` "" is the one of all ranks; `since` is of the monotonic clock.
    """

    kind: str
    group: str
    number: int
    tensors: str
    since: float


class Check:
    """Compares the collectives of this rank with those of the others; `renew` once for each epoch."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._store: Any = None
        self._begun: dict[str, int] = {}
        self.comparing: Comparing | None = None  # read by another thread
        for name, compared in _COMPARED.items():
            original = getattr(dist, name)
            setattr(dist, name, self._checked(name, original, compared))

    def renew(self, store: Any) -> None:
        """Begin an epoch; `store` is a client of its own, cut with the epoch."""
        self._store = store
        self._begun = {}

    def _checked(self, name: str, original: Callable[..., Any], compared: tuple[str, ...]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def collective(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling() and self._applies(sys._getframe(1).f_code.co_filename):
                arguments = signature.bind(*args, **kwargs)
                arguments.apply_defaults()
                if not arguments.arguments.get("async_op"):
                    self._compare(name, arguments.arguments, compared)
            return original(*args, **kwargs)

        return collective

    def _applies(self, file: str) -> bool:
        return self._store is not None and dist.is_initialized() and is_users(file) and not groups.is_traced()

    def _compare(self, name: str, arguments: dict[str, Any], compared: tuple[str, ...]) -> None:
        group = arguments.get("group") or dist.group.WORLD
        if group is None or group == dist.GroupMember.NON_GROUP_MEMBER:
            return
        members = dist.get_process_group_ranks(group)
        if self._rank not in members or len(members) < 2:
            return
        values = [arguments[part] for part in compared if arguments.get(part) is not None]
        self.comparing = Comparing(
            kind=name,
            group="" if group is dist.group.WORLD else group.group_name,
            number=groups.count_of(group) + 1,
            tensors=", ".join(_describe(value) for value in values if isinstance(value, torch.Tensor)),
            since=time.monotonic(),
        )
        try:
            said = self._exchange(group.group_name, members, f"{name}({', '.join(map(_describe, values))})")
        finally:
            self.comparing = None
        if len({what for what, _ in said.values()}) > 1:
            raise CollectiveMismatchError(_told(said))

    def _exchange(self, group: str, members: list[int], what: str) -> dict[int, tuple[str, str]]:
        """Every member's call and line. A key is dropped two calls later, when all have surely read it."""
        number = self._begun[group] = self._begun.get(group, 0) + 1
        line = users_line(sys._getframe(3))
        prefix = f"check/{group}"
        self._store.set(f"{prefix}/{number}/{self._rank}", json.dumps([what, str(line or "")]))
        answers = self._store.multi_get([f"{prefix}/{number}/{rank}" for rank in members])
        if number > 2:
            self._store.delete_key(f"{prefix}/{number - 2}/{self._rank}")
        return {rank: tuple(json.loads(answer)) for rank, answer in zip(members, answers, strict=True)}


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return str(value)


def _told(said: dict[int, tuple[str, str]]) -> str:
    """One line for each kind of call, with its ranks and where they are."""
    kinds: dict[tuple[str, str], list[int]] = {}
    for rank, call in said.items():
        kinds.setdefault(call, []).append(rank)
    lines = [
        f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks[:MAX_RANKS_SHOWN]))}"
        f"{f' and {len(ranks) - MAX_RANKS_SHOWN} more' if len(ranks) > MAX_RANKS_SHOWN else ''}: {what} at {line}"
        for (what, line), ranks in kinds.items()
    ]
    rest = len(lines) - MAX_RANKS_SHOWN
    more = [f"... and {rest} other calls"] if rest > 0 else []
    return "\n".join(
        [
            "ranks disagree on a collective; expected the same call, shape and dtype on all of them",
            *lines[:MAX_RANKS_SHOWN],
            *more,
            "None was begun. Make them equal (pad or drop a last, smaller batch), or call it on all ranks.",
        ]
    )
