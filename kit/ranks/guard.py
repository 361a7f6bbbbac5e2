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
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from kit._torch import groups
from kit.ranks import sockets
from kit.ranks.check import Check, Comparing
from kit.ranks.errors import Frame
from kit.ranks.failure import line_of_thread
from kit.ranks.spec import Spec

EXIT_ORPHANED = 75
_FOREVER = timedelta(days=1)  # people think between two cells; the guard, not a time limit, ends a wait
_REJOIN = timedelta(seconds=60)
_FIRST_SIGNAL_SECONDS = 0.2  # a waiter freed by the cut needs no signal
_STILL_MOVING_SECONDS = 0.06  # more than what has ended just now counts as moving
_TRANSFER_SECONDS = 3.0
_LOOK_SECONDS = 0.005
_NEXT_SIGNAL_SECONDS = 1.0  # the first may have been swallowed (`except`, `__del__`)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What the main thread is at: `command` None between two; `since` is of the monotonic clock.

    `epoch_ns`: when the present group was begun, on the wall clock.
    """

    command: int | None
    since: float
    epoch_ns: int


class EndedEpochError(RuntimeError):
    """A rank was to join a group whose life is over."""


class Guard:
    """Knows the present epoch of this rank, the running command, and how to end both."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._check = Check(spec.rank) if spec.check_collectives else None
        self._lock = threading.Lock()
        # NCCL: aborting communicators from two threads at once (the watchdog, a rank that leaves) never returns (seen).
        self._ending = threading.Lock()
        self._epoch = spec.epoch
        self._sockets: set[str] = set()
        self._shut: dict[str, Any] = {}  # duplicates that keep the ends of an aborted epoch open until it is left
        self._before: set[str] | None = None  # sockets from before those that are being opened for the epoch
        self._running: int | None = None
        self._running_epoch = spec.epoch  # a rank that joins the next epoch is in the present one until it has left it
        self._since = time.monotonic()
        self._begun_ns = {spec.epoch: time.time_ns()}
        self._command_ended: threading.Event | None = None  # for the watchdog, while it waits for the end
        self._abort: tuple[int, str, Frame | None] | None = None
        self._main = threading.main_thread().ident or 0
        groups.require_known_torch()
        groups.watch_new_groups(self._record_sockets)
        watchdog = threading.Thread(target=self._watch, args=(self._connect(_FOREVER), spec.epoch), daemon=True)
        watchdog.name = "kit-watchdog"
        watchdog.start()

    def begin(self, number: int, epoch: int) -> None:
        """The main thread runs command `number` of an epoch from now on, until `end`; only then it can be signalled."""
        with self._lock:
            self._running = number
            self._running_epoch = epoch
            self._since = time.monotonic()

    def end(self) -> None:
        """The main thread runs no command."""
        with self._lock:
            self._running = None
            self._since = time.monotonic()
            if self._command_ended is not None:
                self._command_ended.set()
                self._command_ended = None

    @property
    def activity(self) -> Activity:
        """What the main thread is at; for other threads."""
        with self._lock:
            return Activity(command=self._running, since=self._since, epoch_ns=self._begun_ns[self._epoch])

    def span_ns(self, epoch: int) -> tuple[int, int] | None:
        """When an epoch began and the next one, on the wall clock; None when this process was not in it."""
        with self._lock:
            if epoch not in self._begun_ns:
                return None
            later = (begun for other, begun in self._begun_ns.items() if other > epoch)
            return self._begun_ns[epoch], min(later, default=1 << 62)

    @property
    def comparing(self) -> Comparing | None:
        """The collective that this rank compares with the others, if it does."""
        return self._check.comparing if self._check is not None else None

    def abort_of(self, epoch: int) -> tuple[str, Frame | None] | None:
        """Why an epoch was aborted and at which user's line this rank was then; None when it was not."""
        with self._lock:
            if self._abort is None or self._abort[0] != epoch:
                return None
            return self._abort[1:]

    def join(self, epoch: int) -> None:
        """End the present group, if any, and join all ranks in a new one. Raises what torch raises."""
        self.leave(epoch)
        if self.abort_of(epoch) is not None:  # ended while this rank was still on its way: nobody waits for it there
            raise EndedEpochError(f"epoch {epoch} has ended before this rank joined it")
        with self._record_sockets():
            store = groups.prefixed(self._connect(_REJOIN), f"epoch{epoch}")
            if self._check is not None:
                self._check.renew(groups.prefixed(self._connect(_FOREVER), f"check{epoch}"))
        # Without device_id: with it meshes split the communicator, which crashed in a group after an abort (2.11).
        dist.init_process_group(
            self._spec.backend,
            rank=self._spec.rank,
            world_size=self._spec.world_size,
            store=store,
            timeout=_FOREVER,
        )
        dist.barrier(device_ids=[torch.cuda.current_device()] if self._spec.backend == "nccl" else None)

    def leave(self, epoch: int) -> None:
        """End the present group and be without one in this epoch."""
        with self._ending:
            groups.drop_groups()
        if self._check is not None:
            self._check.renew(None)
        with self._lock:
            self._epoch = epoch
            self._begun_ns[epoch] = time.time_ns()
            self._sockets = set()
            for duplicate in self._shut.values():
                duplicate.close()
            self._shut.clear()

    def _connect(self, timeout: timedelta) -> Any:
        return groups.connect_store(self._spec.host, self._spec.port, timeout=timeout)

    @contextmanager
    def _record_sockets(self) -> Iterator[None]:
        """Take the sockets that appear during the block for the group's."""
        with self._lock:
            outermost, self._before = self._before, self._before or sockets.inodes()
        try:
            yield
        finally:
            with self._lock:
                self._sockets |= sockets.inodes() - self._before
                self._before = outermost

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
                if cause:
                    self._end_epoch(epoch, cause)
            except Exception:  # said, and the next epoch is watched all the same
                traceback.print_exc()
            epoch += 1

    def _end_epoch(self, epoch: int, cause: str) -> None:
        """Free whatever this rank waits for in the epoch, then stop its command if it goes on."""
        with self._lock:
            if self._epoch > epoch:  # this rank has left it already
                return
            if self._epoch < epoch:  # or is about to join it, and must not
                self._abort = (epoch, cause, None)
                return
            command = self._running if self._running_epoch == epoch else None
            self._abort = (epoch, cause, line_of_thread(self._main) if command is not None else None)
            ended = self._command_ended = threading.Event() if command is not None else None
        if self._spec.backend == "nccl":
            with self._ending:
                if self._epoch == epoch:  # else it has left while we waited, and the groups are the next epoch's
                    groups.abort_groups()
        else:
            self._let_transfers_end(epoch, command)
        self._cut(epoch)
        seconds = _FIRST_SIGNAL_SECONDS
        while ended is not None and not ended.wait(seconds):
            if not self._signal(command):
                return
            self._cut(epoch)  # what the command has opened since, in joining for one
            seconds = _NEXT_SIGNAL_SECONDS

    def _let_transfers_end(self, epoch: int, command: int | None) -> None:
        """Wait until nothing moves over the group's connections; a command that keeps them moving is signalled."""
        begun = time.monotonic()
        signalled = command is None
        while (seconds := time.monotonic() - begun) < _TRANSFER_SECONDS:
            with self._lock:
                owned = set(self._sockets) if self._epoch == epoch else set()
            if not sockets.carry(owned, besides_port=self._spec.port):
                return
            if seconds > _STILL_MOVING_SECONDS and not signalled:
                signalled = True
                self._signal(command)
            time.sleep(_LOOK_SECONDS)

    def _signal(self, command: int | None) -> bool:
        """Send SIGINT to the main thread if the command still runs; whether it did."""
        with self._lock:
            if self._running != command:
                return False
            signal.pthread_kill(self._main, signal.SIGINT)
            return True

    def _cut(self, epoch: int) -> None:
        """Shut what the epoch has opened, and what is being opened for it at this moment.

        Nothing when it was left meanwhile (NCCL takes half a second to abort): the sockets are the next one's then.
        """
        with self._lock:
            if self._epoch != epoch:
                return
            joins_next = self._running is not None and self._running_epoch > self._epoch
            opening = set() if self._before is None or joins_next else sockets.inodes() - self._before
            for inode, duplicate in sockets.cut(self._sockets | opening).items():
                if self._shut.setdefault(inode, duplicate) is not duplicate:
                    duplicate.close()
            if self._spec.backend == "gloo":
                sockets.hang_up_on(opening, peers=self._spec.world_size)
