"""Progress of a call on ranks, from the thread that waits for it: who is where, once a second after the first two."""

import itertools
import time
from typing import TYPE_CHECKING

from kit import progress
from kit.ranks.survey import survey

if TYPE_CHECKING:
    from kit.ranks.state import GroupState

FIRST_SECONDS = 2.0
_NEXT_SECONDS = 1.0
_LOOK_SECONDS = 0.2
_numbers = itertools.count()


class Reporter:
    """Reports one call. Nothing is said of a call that ends within two seconds."""

    def __init__(self, state: "GroupState", title: str, *, total: int) -> None:
        self._state = state
        self._title = title
        self._total = total
        self._begun = time.monotonic()
        self._key = ""
        self.next_at = self._begun + FIRST_SECONDS

    def report(self, pending: int) -> None:
        """Say where the ranks are when it is time to."""
        if pending == 0 or time.monotonic() < self.next_at:
            return
        self._key = self._key or f"ranks-{next(_numbers)}"
        where = survey(self._state, seconds=_LOOK_SECONDS).explain()
        self._emit(progress.State.RUNNING, self._total - pending, where)
        self.next_at = time.monotonic() + _NEXT_SECONDS

    def end(self, *, failed: bool) -> None:
        """Say that the call is over, if anything was said of it."""
        if self._key:
            self._emit(progress.State.FAILED if failed else progress.State.FINISHED, self._total, "")

    def _emit(self, state: progress.State, done: int, message: str) -> None:
        seconds = time.monotonic() - self._begun
        progress.emit(
            progress.Event(
                key=self._key,
                task=self._title,
                state=state,
                done=done,
                total=self._total,
                message=message,
                seconds=seconds,
            )
        )
