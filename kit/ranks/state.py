"""What a group of ranks holds in the controller: processes, store, output, numbers.

It is apart from `Ranks` so that a finalizer can end everything without keeping the group itself alive.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

from kit.ranks import wire
from kit.ranks.forkserver import RankProcess
from kit.ranks.messages import Command, Counts, Kind, pack
from kit.ranks.output import Output, Sink

HOST = "127.0.0.1"
_CLOSE_SECONDS = 1.0


class GroupState:
    """Mutable state of one group; `close` ends its processes and gives every descriptor back."""

    def __init__(self, *, spawn: Callable[[int, int, int], RankProcess], sink: Sink) -> None:
        self.store, self.port = _open_store()
        self.spawn_process = spawn
        self.sink = sink
        self.output = Output()
        self.processes: dict[int, RankProcess] = {}
        self.counts: dict[int, Counts] = {}
        self.epoch = -1  # the first join begins epoch 0
        self.joining: int | None = None  # number of a JOIN or LEAVE whose answers have not been read
        self.closed = False
        self.stop_requested = False
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._number = 0
        self._owner = os.getpid()
        self.lock = threading.Lock()

    @property
    def living(self) -> dict[int, RankProcess]:
        """Ranks whose process has not ended."""
        for process in self.processes.values():
            if process.exit_code is None and wait([process.status], 0):
                process.reap()
        return {rank: process for rank, process in self.processes.items() if process.exit_code is None}

    def spawn(self, rank: int) -> None:
        """Make the process of a rank, which will join the next epoch."""
        old = self.processes.get(rank)
        if old is not None:
            old.close()
        process = self.spawn_process(rank, self.port, self.epoch + 1)
        self.processes[rank] = process
        self.output.add(rank, process.out, process.err)

    def send(self, ranks: Iterable[int], kind: Kind, value: wire.Frames | None = None, **more: Any) -> int:
        """Send a command to ranks; its number."""
        self._number += 1
        frames = pack(Command(kind=kind, number=self._number, epoch=self.epoch, **more), value)
        for rank in ranks:
            with contextlib.suppress(OSError):  # a dead rank; its status says so to whoever waits
                wire.send(self.processes[rank].connection, frames)
        return self._number

    def abort(self, cause: str) -> None:
        """End the present epoch on every rank."""
        self.store.set(f"abort/{self.epoch}", cause)

    def begin_join(self) -> None:
        """Have all ranks join the group of the next epoch; the answers are read before the next call."""
        self.epoch += 1
        self.joining = self.send(self.processes, Kind.JOIN)

    def begin_leave(self) -> None:
        """Have the living ranks be without a group in the next epoch, since a rank is missing."""
        self.epoch += 1
        self.joining = self.send(self.living, Kind.LEAVE)

    def in_step(self) -> bool:
        """Whether all members of every process group have begun equally many collectives in it."""
        names = {name for counts in self.counts.values() for name in counts}
        for name in names:
            seen = {rank: counts[name] for rank, counts in self.counts.items() if name in counts}
            members = {rank for _, ranks in seen.values() for rank in ranks}
            if members != set(seen) or len({count for count, _ in seen.values()}) > 1:
                return False
        return True

    def request_stop(self) -> None:
        """Have the call that is under way stopped; safe in any thread and in a signal handler."""
        self.stop_requested = True
        os.eventfd_write(self.wake, 1)

    @contextmanager
    def stop_button(self) -> Iterator[None]:
        """Within the block Ctrl-C asks for a stop instead of raising anywhere, in the middle of a message say.

        Raises KeyboardInterrupt at the end when a stop was asked for and nobody took the request.
        """
        self.stop_requested = False
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, lambda number, frame: self.request_stop())
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        if self.stop_requested:
            self.stop_requested = False
            raise KeyboardInterrupt

    def close(self) -> None:
        """End all processes; does nothing the second time or in a forked child."""
        if self.closed or os.getpid() != self._owner:
            return
        self.closed = True
        self.send(self.living, Kind.CLOSE)
        self._await_ends()
        for process in self.living.values():
            process.kill()
        self._await_ends()
        self.output.close()
        for process in self.processes.values():
            process.close()
        os.close(self.wake)
        self.store = None

    def _await_ends(self) -> None:
        for process in self.living.values():
            wait([process.status], _CLOSE_SECONDS)


def _open_store() -> tuple[Any, int]:
    from kit._torch import groups  # imports torch

    return groups.serve_store(HOST)
