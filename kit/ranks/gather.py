"""Wait for the answers of one command, and end the epoch when waiting on is of no use.

The first failure that stands for itself, a death, a stop from the person or the time limit aborts the epoch, which
frees the ranks that wait for one another; then the remaining answers are gathered. A short grace lets ranks
that fail alike (a typing error in a cell) answer first, so that no group is lost to a NameError.
"""

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import Literal

from kit import progress
from kit.ranks import wire
from kit.ranks.death import death_of
from kit.ranks.errors import Failure
from kit.ranks.messages import Answer, unpack
from kit.ranks.state import GroupState

GRACE_SECONDS = 0.05
PEER_LOST_GRACE_SECONDS = 0.5  # a lost peer is a consequence: its cause is about to be told
PATIENCE_SECONDS = 15.0  # a rank that has not stopped this long after an abort is ended

Reason = Literal["", "interrupted", "timeout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a command ended: values and failures by rank, and whether and why the epoch was ended."""

    values: dict[int, wire.Frames]
    failures: tuple[Failure, ...]
    reason: Reason
    aborted: bool

    @property
    def deaths(self) -> tuple[Failure, ...]:
        """The ranks that died."""
        return tuple(failure for failure in self.failures if failure.died)


def gather(state: GroupState, number: int, ranks: Iterable[int], *, timeout: float | None) -> Outcome:
    """Wait until every rank has answered command `number` or has died. Hands output to the sink meanwhile."""
    waiting = _Waiting(state, number, ranks, timeout)
    with state.output.waiting():
        while waiting.pending:
            waiting.step()
        state.output.drain_all(state.sink)
    return waiting.outcome()


class _Waiting:
    def __init__(self, state: GroupState, number: int, ranks: Iterable[int], timeout: float | None) -> None:
        self._state = state
        self._number = number
        self.pending = set(ranks)
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._abort_at: float | None = None  # when the grace of the first failure ends
        self._kill_at: float | None = None
        self._aborted = False
        self._reason: Reason = ""
        self._hung_up: set[int] = set()
        self._ended: set[int] = set()  # those that would not stop
        self._values: dict[int, wire.Frames] = {}
        self._failures: list[Failure] = []

    def step(self) -> None:
        """Wait for whatever comes first and act on it."""
        state = self._state
        living = {r: p for r, p in state.processes.items() if p.exit_code is None}
        talking = {p.connection: r for r, p in living.items() if r not in self._hung_up}
        dying = {p.status: r for r, p in living.items()}
        ready = wait([*talking, *dying, state.output.wake, state.wake], self._seconds_left())
        for thing in ready:
            if thing in talking:
                self._take(talking[thing])
        for thing in ready:  # after the answers: a rank may have answered and died
            if thing in dying:
                self._bury(dying[thing])
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(state.wake)
        state.output.drain(state.sink)
        self._decide(time.monotonic())

    def outcome(self) -> Outcome:
        """What was found, causes in the order in which they were seen."""
        return Outcome(values=self._values, failures=tuple(self._failures), reason=self._reason, aborted=self._aborted)

    def _seconds_left(self) -> float | None:
        moments = [self._kill_at] if self._aborted else [self._deadline, self._abort_at]
        known = [moment for moment in moments if moment is not None]
        return max(0.0, min(known) - time.monotonic()) if known else None

    def _take(self, rank: int) -> None:
        try:
            header, value = unpack(wire.receive(self._state.processes[rank].connection))
        except (EOFError, OSError):
            self._hung_up.add(rank)  # it is about to be reported dead
            return
        if isinstance(header, progress.Event):
            progress.emit(replace(header, key=f"rank{rank}/{header.key}", rank=rank))
        elif isinstance(header, Answer) and header.number == self._number:
            self.pending.discard(rank)
            self._state.counts[rank] = header.collectives
            if header.failure is None:
                self._values[rank] = value
            else:
                self._fail(replace(header.failure, unanswered=self._reason != ""))

    def _bury(self, rank: int) -> None:
        process = self._state.processes[rank]
        code = process.reap()
        self._state.output.drain_all(self._state.sink)
        self.pending.discard(rank)
        self._values.pop(rank, None)
        last = self._state.output.last_errors(rank)
        how = f"it did not stop within {PATIENCE_SECONDS:g} s and was ended" if rank in self._ended else ""
        death = death_of(rank, code, how=how, crash=process.crash, last_errors=last)
        self._fail(death)

    def _fail(self, failure: Failure) -> None:
        self._failures.append(failure)
        grace = 0.0 if failure.died else PEER_LOST_GRACE_SECONDS if failure.folded else GRACE_SECONDS
        moment = time.monotonic() + grace
        self._abort_at = moment if self._abort_at is None else min(self._abort_at, moment)

    def _decide(self, now: float) -> None:
        if self._aborted:
            if self._state.stop_requested:  # pressed again: no more patience
                self._state.stop_requested = False
                self._reason, self._kill_at = "interrupted", now
            if self._kill_at is not None and now >= self._kill_at:
                self._kill_at = None
                for rank in self.pending:
                    self._ended.add(rank)
                    self._state.processes[rank].kill()
        elif self._state.stop_requested:
            self._state.stop_requested = False
            self._abort("interrupted", "stopped from the notebook")
        elif self._deadline is not None and now >= self._deadline:
            self._abort("timeout", f"no answer within {self._timeout:g} s")
        elif self._abort_at is not None and now >= self._abort_at and self.pending:
            first = next((f for f in self._failures if not f.folded), self._failures[0])
            self._abort("", f"rank {first.rank}: {first.first_line}")

    def _abort(self, reason: Reason, cause: str) -> None:
        self._reason = reason
        self._aborted = True
        self._kill_at = time.monotonic() + PATIENCE_SECONDS
        self._state.abort(cause)
