"""What a group of ranks holds in the controller: processes, store, output, numbers.

It is apart from `Ranks` so that a finalizer can end everything without keeping the group itself alive.
"""

import contextlib
import os
import threading
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import wait
from typing import Any

from kit.ranks import loan, rooms
from kit.ranks.errors import ClosedError
from kit.ranks.forkserver import RankProcess
from kit.ranks.functions import SentFunctions
from kit.ranks.link import Frames, packed_small
from kit.ranks.listening import Listening
from kit.ranks.messages import Command, Counts, Kind, pack
from kit.ranks.output import Output, Sink
from kit.ranks.pool import Pool
from kit.ranks.questions import Questions
from kit.ranks.spec import Spec
from kit.ranks.stacks import Stacks
from kit.ranks.starter import Starter
from kit.ranks.survey import CallView

_CLOSE_SECONDS = 1.0


class GroupState:
    """Mutable state of one group; `close` ends its processes and gives every descriptor back."""

    def __init__(self, *, starter: Starter, spec: Spec, sink: Sink) -> None:
        self.store, self._port = _open_store(starter.host)
        self._starter = starter
        self._spec = spec
        self.sink = sink
        self.output = Output()
        self.processes: dict[int, RankProcess] = {}
        self.counts: dict[int, Counts] = {}
        self.questions = Questions(self._connect)
        self.call: CallView | None = None  # what is under way, for other threads to see
        self.call_epoch: int | None = None  # in which the last call was begun
        self.stopped_at: Stacks | None = None  # where the ranks were when the last call was ended
        self.edited: dict[str, list[int]] = {}  # modules edited after ranks had imported them
        self._aborted = -2  # the latest epoch that was aborted
        self.epoch = -1  # the first join begins epoch 0
        self.joining: int | None = None  # number of a JOIN or LEAVE whose answers have not been read
        self.joiners: tuple[int, ...] = ()  # who was told to JOIN: one that has died since keeps the others waiting
        self.closed = False
        self.stop_requested = False
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.listening = Listening(output=self.output.wake, stop=self.wake)
        self.functions = SentFunctions()
        self._pool = Pool()
        self._number = 0
        self._owner = os.getpid()
        self.lock = threading.Lock()  # held by the thread that makes a call
        self.caller: int | None = None  # that thread
        self._burying = threading.RLock()

    @property
    def living(self) -> dict[int, RankProcess]:
        """Ranks whose process has not ended."""
        with self._burying:  # other threads ask too, and the exit code can be read once only
            for process in self.processes.values():
                if process.exit_code is None and wait([process.status], 0):
                    process.reap()
        return {rank: process for rank, process in self.processes.items() if process.exit_code is None}

    @property
    def name(self) -> str:
        """The group in a few words."""
        return f"{self._spec.world_size} ranks, {self._spec.backend}, epoch {self.epoch}"

    def require_open(self) -> None:
        """Raise `ClosedError` when the group is closed."""
        if self.closed:
            raise ClosedError(
                f"this group of {self._spec.world_size} ranks is closed; expected an open one. "
                f"Start another with kit.launch({self._spec.world_size})."
            )

    def bury(self, rank: int) -> int:
        """The exit code of a rank whose process has ended."""
        with self._burying:
            return self.processes[rank].reap()

    def spawn(self, rank: int) -> None:
        """Make the process of a rank, which will join the next epoch."""
        spec = replace(self._spec, rank=rank, host=self._starter.host, port=self._port, epoch=self.epoch + 1)
        process = self._starter.start(spec)
        old = self.processes.get(rank)
        if old is not None:
            self.listening.forget(old)
            old.close()
        self.processes[rank] = process
        self.listening.add(process)
        self.output.add(rank, process.out, process.err)

    def send(self, ranks: Iterable[int], kind: Kind, value: Frames | None = None, **more: Any) -> int:
        """Send a command to ranks; its number."""
        self._number += 1
        frames = pack(Command(kind=kind, number=self._number, epoch=self.epoch, **more), value)
        links = [self.processes[rank].connection for rank in ranks]
        small = packed_small(frames)
        if small is not None:
            for link in links:
                with contextlib.suppress(OSError):  # a dead rank; its status says so to whoever waits
                    link.write(small)
            return self._number
        with loan.lent(frames, ranks=len(links)) as lent:
            ready = self._pool.placed(lent) if any(link.is_local for link in links) else lent
            for link in links:
                with contextlib.suppress(OSError):
                    link.send(ready)
        return self._number

    def begin_call(self, title: str) -> CallView:
        """Let other threads see the call that the next command makes."""
        self.stopped_at = None
        self.call_epoch = self.epoch
        self.call = CallView(title=title, number=self._number + 1)
        return self.call

    def abort(self, cause: str) -> None:
        """End the present epoch on every rank."""
        self._aborted = self.epoch
        self.store.set(f"abort/{self.epoch}", cause)

    def begin_join(self) -> None:
        """Have all ranks join the group of the next epoch; the answers are read before the next call."""
        if self._aborted != self.epoch:  # nothing ended this epoch: let the watchdogs go on to the next one
            self.store.set(f"abort/{self.epoch}", "")
        self.epoch += 1
        self.joiners = tuple(self.processes)
        self.joining = self.send(self.joiners, Kind.JOIN)

    def begin_leave(self) -> None:
        """Have the living ranks be without a group in the next epoch, since a rank is missing."""
        self.epoch += 1
        self.joiners = ()  # nobody waits for another one to leave
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

    def take_stop(self) -> bool:
        """Whether a stop was asked for that nobody has taken; it is taken now."""
        asked, self.stop_requested = self.stop_requested, False
        return asked

    def close(self) -> None:
        """End all processes; does nothing the second time or in a forked child."""
        if self.closed or os.getpid() != self._owner:
            return
        self.closed = True
        self.end_processes()
        self.questions.close()
        self.output.close()
        self._pool.close()
        rooms.clear()
        for process in self.processes.values():
            process.close()
        os.close(self.wake)
        self.store = None
        self._starter.close()

    def end_processes(self) -> None:
        """End all ranks; those that do not close within a second are killed."""
        self.send(self.living, Kind.CLOSE)
        self._await_ends()
        for process in self.living.values():
            process.kill()
        self._await_ends()
        self.joining = None

    def _connect(self, timeout: timedelta) -> Any:
        from kit._torch import groups

        return groups.connect_store(self._starter.host, self._port, timeout=timeout)

    def _await_ends(self) -> None:
        for process in self.living.values():
            wait([process.status], _CLOSE_SECONDS)


def _open_store(host: str) -> tuple[Any, int]:
    from kit._torch import groups  # imports torch

    return groups.serve_store(host)
