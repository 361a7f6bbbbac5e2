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
from typing import Literal

from kit import progress
from kit.ranks.death import LATE_SECONDS, death_of
from kit.ranks.errors import Failure
from kit.ranks.forkserver import RankProcess
from kit.ranks.link import Frames
from kit.ranks.listening import Heard
from kit.ranks.messages import Answer, unpack
from kit.ranks.report import Reporter
from kit.ranks.stacks import Stacks
from kit.ranks.state import GroupState
from kit.ranks.survey import CallView, survey

GRACE_SECONDS = 0.05
PEER_LOST_GRACE_SECONDS = 0.5  # a lost peer is a consequence: its cause is about to be told
LOOK_SECONDS = 0.2  # what a rank gets to say where it is before the abort
PATIENCE_SECONDS = 15.0  # a rank that has not stopped this long after an abort is ended

Reason = Literal["", "interrupted", "timeout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a command ended: values and failures by rank, whether and why the epoch was ended.

    `stacks`: where the ranks were then.
    """

    values: dict[int, Frames]
    failures: tuple[Failure, ...]
    reason: Reason
    aborted: bool
    stacks: Stacks | None = None

    @property
    def deaths(self) -> tuple[Failure, ...]:
        """The ranks that died."""
        return tuple(failure for failure in self.failures if failure.died)


def gather(
    state: GroupState, number: int, ranks: Iterable[int], *, timeout: float | None, call: CallView | None = None
) -> Outcome:
    """Wait until every rank has answered command `number` or has died. Hands output to the sink meanwhile.

    `call` is the person's call, whose progress is reported and whose ranks are asked where they are before an abort;
    None for a command of the kit's own.
    """
    waiting = _Waiting(state, number, ranks, timeout, call)
    try:
        state.output.someone_waits = True
        waiting.bury_the_dead()
        while waiting.pending:
            waiting.step()
        state.output.drain_all(state.sink)
    finally:
        state.output.someone_waits = False
        waiting.end()
    return waiting.outcome()


class _Waiting:
    def __init__(
        self, state: GroupState, number: int, ranks: Iterable[int], timeout: float | None, call: CallView | None
    ) -> None:
        self._state = state
        self._number = number
        self.pending = set(ranks)
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._abort_at: float | None = None  # when the grace of the first failure ends
        self._kill_at: float | None = None
        self._aborted = False
        self._reason: Reason = ""
        self._ended: set[int] = set()  # those that would not stop
        self._values: dict[int, Frames] = {}
        self._failures: list[Failure] = []
        self._stacks: Stacks | None = None
        self._call = call
        self._reporter = Reporter(state, call.title, total=len(self.pending)) if call is not None else None

    def end(self) -> None:
        """The command is over: say so to those who watch."""
        if self._reporter is not None:
            self._reporter.end(failed=bool(self._failures))

    def bury_the_dead(self) -> None:
        """Take those whose end was heard before this wait began: it is not heard again."""
        for rank in sorted(self.pending & self._state.listening.gone):
            self._bury(rank)

    def step(self) -> None:
        """Wait for whatever comes first and act on it."""
        state = self._state
        ended: list[RankProcess] = []
        for heard, process in state.listening.wait(self._seconds_left()):
            if process is None:
                if heard is Heard.OUTPUT:
                    state.output.drain(state.sink)
                else:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(state.wake)
            elif heard is Heard.SAID:
                self._take(process)
            else:
                ended.append(process)
        for process in ended:  # after the answers: a rank may have answered and died
            state.listening.forget(process, Heard.ENDED)
            if process.exit_code is None or process.rank in self.pending:  # else another thread has seen it end
                self._bury(process.rank)
        self._decide(time.monotonic())
        if self._reporter is not None and not self._aborted:
            self._reporter.report(len(self.pending))

    def outcome(self) -> Outcome:
        """What was found, causes in the order in which they were seen."""
        return Outcome(
            values=self._values,
            failures=tuple(self._failures),
            reason=self._reason,
            aborted=self._aborted,
            stacks=self._stacks,
        )

    def _seconds_left(self) -> float | None:
        first = self._kill_at
        if not self._aborted:
            first = self._reporter.next_at if self._reporter is not None else None
            for moment in (self._deadline, self._abort_at):
                if moment is not None and (first is None or moment < first):
                    first = moment
        return None if first is None else max(0.0, first - time.monotonic())

    def _take(self, process: RankProcess) -> None:
        rank = process.rank
        try:
            header, value = unpack(process.connection.receive())
        except (EOFError, OSError):
            self._state.listening.forget(process, Heard.SAID)  # it is about to be reported dead
            return
        if isinstance(header, progress.Event):
            progress.emit(replace(header, key=f"rank{rank}/{header.key}", rank=rank))
        elif header.number == self._number and isinstance(header, Answer):
            self.pending.discard(rank)
            self._state.counts[rank] = header.collectives
            for module in header.edited:
                self._state.edited.setdefault(module, []).append(rank)
            if self._call is not None:
                self._call.answered[rank] = header.failure
            if header.failure is None:
                self._values[rank] = value
            else:
                self._fail(replace(header.failure, unanswered=self._reason != ""))

    def _bury(self, rank: int) -> None:
        process = self._state.processes[rank]
        code = self._state.bury(rank)
        self._state.output.await_end(rank, seconds=LATE_SECONDS)
        self._state.output.drain_all(self._state.sink)
        self.pending.discard(rank)
        self._values.pop(rank, None)
        last = self._state.output.last_errors(rank)
        how = f"it did not stop within {PATIENCE_SECONDS:g} s and was ended" if rank in self._ended else process.how
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
        if self._call is not None:
            self._stacks = self._state.stopped_at = survey(self._state, seconds=LOOK_SECONDS)
        self._state.abort(cause)
