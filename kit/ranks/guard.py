"""The guard of one rank: it ends a group's life at once and begins the next one.

An *epoch* is one life of the process group. The controller sets the key `abort/<epoch>` in the store; a
watchdog thread of every rank waits for it on a store client of its own, cuts what the group holds (gloo: its
sockets, since no call of torch frees a waiter there; NCCL: its communicators) and, when the command goes on all
the same, sends SIGINT to the main thread. The next epoch is built under a fresh store prefix, so that no address
of the old one is met again. When the store's process is gone, the rank ends.
"""

import os
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from kit._torch import groups
from kit.ranks import sockets
from kit.ranks.check import Check
from kit.ranks.errors import Frame
from kit.ranks.failure import line_of_thread
from kit.ranks.spec import Spec

EXIT_ORPHANED = 75
_FOREVER = timedelta(days=1)  # people think between two cells; the guard, not a time limit, ends a wait
_REJOIN = timedelta(seconds=60)
_FIRST_SIGNAL_SECONDS = 0.2  # a waiter freed by the cut needs no signal
_NEXT_SIGNAL_SECONDS = 1.0  # the first may have been swallowed (`except`, `__del__`)


class Guard:
    """Knows the present epoch of this rank, the running command, and how to end both."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._check = Check(spec.rank) if spec.check_collectives else None
        self._lock = threading.Lock()
        self._epoch = spec.epoch
        self._sockets: set[str] = set()
        self._running: int | None = None
        self._command_ended = threading.Event()
        self._abort: tuple[int, str, Frame | None] | None = None
        self._main = threading.main_thread().ident or 0
        groups.require_known_torch()
        groups.watch_new_groups(self._record_sockets)
        watchdog = threading.Thread(target=self._watch, args=(self._connect(_FOREVER), spec.epoch), daemon=True)
        watchdog.name = "kit-watchdog"
        watchdog.start()

    @contextmanager
    def command(self, number: int) -> Iterator[None]:
        """The main thread runs command `number` inside this block; only there it can be signalled."""
        with self._lock:
            self._running = number
            self._command_ended.clear()
        try:
            yield
        finally:
            with self._lock:
                self._running = None
                self._command_ended.set()

    def abort_of(self, epoch: int) -> tuple[str, Frame | None] | None:
        """Why an epoch was aborted and at which user's line this rank was then; None when it was not."""
        with self._lock:
            if self._abort is None or self._abort[0] != epoch:
                return None
            return self._abort[1:]

    def join(self, epoch: int) -> None:
        """End the present group, if any, and join all ranks in a new one. Raises what torch raises."""
        self.leave(epoch)
        with self._record_sockets():
            store = groups.prefixed(self._connect(_REJOIN), f"epoch{epoch}")
            if self._check is not None:
                self._check.renew(groups.prefixed(self._connect(_FOREVER), f"check{epoch}"))
        device = torch.device("cuda", torch.cuda.current_device()) if self._spec.backend == "nccl" else None
        dist.init_process_group(
            self._spec.backend,
            rank=self._spec.rank,
            world_size=self._spec.world_size,
            store=store,
            timeout=_FOREVER,
            device_id=device,
        )
        dist.barrier()

    def leave(self, epoch: int) -> None:
        """End the present group and be without one in this epoch."""
        groups.drop_groups()
        if self._check is not None:
            self._check.renew(None)
        with self._lock:
            self._epoch = epoch
            self._sockets = set()

    def _connect(self, timeout: timedelta) -> Any:
        return groups.connect_store(self._spec.host, self._spec.port, timeout=timeout)

    @contextmanager
    def _record_sockets(self) -> Iterator[None]:
        """Take the sockets that appear during the block for the group's."""
        before = sockets.inodes()
        try:
            yield
        finally:
            with self._lock:
                self._sockets |= sockets.inodes() - before

    def _watch(self, store: Any, epoch: int) -> None:
        while True:
            key = f"abort/{epoch}"
            try:
                store.wait([key], _FOREVER)
                cause = store.get(key).decode()
            except dist.DistStoreError:  # only the waiting time is over
                continue
            except RuntimeError:  # the store's process is gone, and with it the person
                os._exit(EXIT_ORPHANED)
            try:
                self._end_epoch(epoch, cause)
            except Exception:  # said, and the next epoch is watched all the same
                traceback.print_exc()
            epoch += 1

    def _end_epoch(self, epoch: int, cause: str) -> None:
        """Free whatever this rank waits for in the epoch, then stop its command if it goes on."""
        with self._lock:
            if self._epoch != epoch:  # this rank has left it already
                return
            command, owned = self._running, self._sockets
            self._abort = (epoch, cause, line_of_thread(self._main) if command is not None else None)
        if self._spec.backend == "nccl":
            groups.abort_groups()
        sockets.cut(owned)
        seconds = _FIRST_SIGNAL_SECONDS
        while command is not None and not self._command_ended.wait(seconds):
            with self._lock:
                if self._running != command:
                    return
                signal.pthread_kill(self._main, signal.SIGINT)
            seconds = _NEXT_SIGNAL_SECONDS
