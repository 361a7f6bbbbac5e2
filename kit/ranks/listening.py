"""What the controller listens to while it waits for ranks: their answers, their ends, their output, a stop.

One poll object is kept from call to call: making a selector for each wait, as `multiprocessing.connection.wait`
does, cost a fifth of a trivial call (measured).
"""

import select
from enum import Enum, auto

from kit.ranks.forkserver import RankProcess


class Heard(Enum):
    """What there is: an answer to read, a rank that ended, lines of output, a stop that was asked for."""

    SAID = auto()
    ENDED = auto()
    OUTPUT = auto()
    STOP = auto()


class Listening:
    """Descriptors of one group. Used by the thread that makes the call only."""

    def __init__(self, *, output: int, stop: int) -> None:
        self._all = select.poll()
        self._ends = select.poll()
        self._of: dict[int, tuple[Heard, RankProcess | None]] = {output: (Heard.OUTPUT, None), stop: (Heard.STOP, None)}
        self._gone: set[int] = set()  # ranks that ended and were heard
        for fd in self._of:
            self._all.register(fd, select.POLLIN)

    def add(self, process: RankProcess) -> None:
        """Listen to a rank from now on."""
        for fd, what in ((process.connection.fileno(), Heard.SAID), (process.status.fileno(), Heard.ENDED)):
            self._of[fd] = (what, process)
            self._all.register(fd, select.POLLIN)
        self._ends.register(process.status.fileno(), select.POLLIN)
        self._gone.discard(process.rank)

    def forget(self, process: RankProcess, what: Heard | None = None) -> None:
        """Listen no more for one thing from a rank, or for anything; while its descriptors are open."""
        for fd, (kind, owner) in list(self._of.items()):
            if owner is process and what in (None, kind):
                del self._of[fd]
                self._all.unregister(fd)
                if kind is Heard.ENDED:
                    self._ends.unregister(fd)
                    self._gone.add(process.rank)

    def wait(self, seconds: float | None) -> list[tuple[Heard, RankProcess | None]]:
        """What there is within so many seconds, None: for ever."""
        of = self._of
        return [of[fd] for fd, _ in self._all.poll(None if seconds is None else 1000 * seconds)]

    @property
    def gone(self) -> frozenset[int]:
        """Ranks whose end was heard."""
        return frozenset(self._gone)

    def someone_ended(self) -> bool:
        """Whether a rank has ended, heard or not yet."""
        return bool(self._gone or self._ends.poll(0))
