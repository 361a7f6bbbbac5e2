"""torch's private names around process groups: `torch.distributed.distributed_c10d`.

Seen on torch 2.11.0 and 2.13.0. A group's life is one epoch: everything here is about ending it at once,
which torch offers for NCCL only, and about knowing what belongs to it.
"""

import os
import socket
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import (  # type: ignore[attr-defined]  # exported, but not for type checkers
    DistNetworkError,
    PrefixStore,
    TCPStore,
    distributed_c10d,
)

_CONNECT = timedelta(seconds=60)
_NEEDED = ("_new_process_group_helper", "_abort_process_group", "_world")
_PEER_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "Connection refused",
)


def serve_store(host: str) -> tuple[Any, int]:
    """A store in this process that listens on `host` only, and its port.

    Given a host name alone, TCPStore listens on all interfaces; given a bound socket it does not.
    """
    with socket.create_server((host, 0)) as listener:
        port = int(listener.getsockname()[1])
        listening = os.dup(listener.fileno())  # the store closes it
        return TCPStore(host, port, None, True, wait_for_workers=False, master_listen_fd=listening), port


def connect_store(host: str, port: int, *, timeout: timedelta) -> Any:
    """A client of the store at that address; `timeout` for its waits.

    Connecting may take longer: torch asks the name server for the name of the address, for its logs, and a lost
    answer costs 5 s (seen; pytorch issue 159007).
    """
    store = TCPStore(host, port, None, False, timeout=max(timeout, _CONNECT))
    store.set_timeout(timeout)
    return store


def prefixed(store: Any, prefix: str) -> Any:
    """The store with a prefix before each key."""
    return PrefixStore(prefix, store)


class UnknownTorchError(RuntimeError):
    """This torch lacks a private name that the ranks need."""


def require_known_torch() -> None:
    """Raise `UnknownTorchError` when a name used here is missing."""
    missing = [name for name in _NEEDED if not hasattr(distributed_c10d, name)]
    if missing:
        raise UnknownTorchError(
            f"torch {torch.__version__} has no distributed_c10d.{', '.join(missing)}; the ranks of this kit were "
            "seen to work on torch 2.11 to 2.13. Install one of these."
        )


def watch_new_groups(around: Callable[[], Any]) -> None:
    """Enter `around()` whenever this process makes a process group, from now on.

    The helper is called for the default group and for every `new_group` (so for meshes too).
    """
    original: Any = distributed_c10d._new_process_group_helper

    def helper(*args: Any, **kwargs: Any) -> Any:
        with around():
            return original(*args, **kwargs)

    distributed_c10d._new_process_group_helper = helper


def drop_groups() -> None:
    """End every group of this process and clear torch's Python state; does nothing without a group.

    Seen: gloo 10 to 70 ms, NCCL up to 0.5 s. Frees waiters on NCCL only.
    """
    if torch.distributed.is_initialized():
        distributed_c10d._abort_process_group()
    # A join that was ended midway has counted already: with another count on another rank the next default groups
    # would have different names, and the ranks would wait for each other's keys for ever (seen).
    distributed_c10d._world.group_count = 0


_before_abort: "weakref.WeakSet[Callable[[], None]]" = weakref.WeakSet()


def before_abort(tell: Callable[[], None]) -> None:
    """Call `tell` right before communicators are aborted, as long as somebody holds it.

    What waits for an aborted NCCL collective goes on with undefined values: who keeps tensors must note now what is
    done.
    """
    _before_abort.add(tell)


def abort_groups() -> None:
    """Abort every communicator inside one bracket, keeping torch's Python state.

    Without the bracket aborting one may wait for a kernel of another (pytorch issue 119797).
    """
    for tell in list(_before_abort):
        tell()
    world = distributed_c10d._world
    groups = sorted(world.pg_names, key=lambda group: world.pg_names[group], reverse=True)
    with _bracket(groups):
        for group in groups:
            group.abort()


@contextmanager
def _bracket(groups: list[Any]) -> Iterator[None]:
    backend: Any = None
    if groups and torch.distributed.is_nccl_available():
        default = distributed_c10d._get_default_group() if torch.distributed.is_initialized() else groups[-1]
        if torch.distributed.get_backend(default) == "nccl":
            backend = default._get_backend(torch.device("cuda"))
    if backend is None:
        yield
        return
    backend._group_start()
    try:
        yield
    finally:
        backend._group_end()


def collectives_begun() -> dict[str, tuple[int, tuple[int, ...]]]:
    """For every group of this process: its name, how many collectives it has begun, its ranks.

    Ranks whose counts differ are out of step with one another.
    """
    world = distributed_c10d._world
    counts: dict[str, tuple[int, tuple[int, ...]]] = {}
    members: list[tuple[Any, Any]] = list(world.pg_names.items())
    for group, name in members:
        counts[str(name)] = (count_of(group), tuple(world.pg_group_ranks.get(group, {})))
    return counts


def count_of(group: Any) -> int:
    """How many collectives a group has begun in this process."""
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:  # a backend without counts (fake)
        return 0


def is_traced() -> bool:
    """Whether operations are being recorded or faked instead of run, by a dispatch mode of any kind."""
    return torch._C._len_torch_dispatch_stack() > 0


def is_live(group: Any) -> bool:
    """Whether torch still knows a process group of this process."""
    return group in distributed_c10d._world.pg_map


def is_peer_lost(error: BaseException) -> bool:
    """Whether an error only says that another rank's connection went away.

    gloo raises a bare RuntimeError, so its words are all there is.
    """
    if isinstance(error, DistNetworkError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _PEER_LOST)
