"""The controller's side of the lookouts: ask ranks while they work, and never wait long for one that cannot answer.

Each question has a number in each rank's row of keys. A rank that did not answer in time finds the newest question
when it looks up again, and what it says to an older one is thrown away.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from kit.ranks.errors import RanksError

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.01
_STORE_SECONDS = timedelta(seconds=60)
_NAMES_SECONDS = 0.5


class Told(msgspec.Struct, frozen=True):
    """An answer: `value` is JSON, `error` says why there is none."""

    question: int
    value: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""


class Questions:
    """Asks the ranks of one group. `connect(timeout)` gives a client of its store. Usable from any thread."""

    def __init__(self, connect: Callable[[timedelta], Any]) -> None:
        self._connect = connect
        self._store: Any = None
        self._lock = threading.Lock()
        self._numbers: dict[tuple[int, int], int] = {}  # (rank, pid) -> number of its next key
        self._question = 0

    def ask(self, pids: dict[int, int], verb: str, argument: str = "", *, seconds: float) -> dict[int, Told]:
        """Ask living ranks, given with their process ids; answers of those that gave one within `seconds`."""
        deadline = time.monotonic() + seconds
        with self._lock, contextlib.suppress(RuntimeError):  # the group is being closed
            if self._store is None:
                self._store = self._connect(_STORE_SECONDS)
            self._question += 1
            question = json.dumps([self._question, verb, argument])
            for rank, pid in pids.items():
                self._put(rank, pid, question)
            return self._await(pids, question, deadline)
        return {}

    def ask_one(self, pids: dict[int, int], verb: str, argument: str, *, rank: int | None, seconds: float) -> Told:
        """The answer of one living rank, None: the first. Raises `RanksError` when there is none in time."""
        chosen = next(iter(pids), None) if rank is None else rank
        if chosen not in pids:
            raise RanksError(f"rank {chosen} is not alive; expected one of {', '.join(map(str, pids)) or '(none)'}")
        answers = self.ask({chosen: pids[chosen]}, verb, argument, seconds=seconds)
        if chosen not in answers:
            raise RanksError(f"rank {chosen} gave no answer within {seconds:g} s; ranks.stacks() tells where it is")
        return answers[chosen]

    def names(self, pids: dict[int, int], ranks: Sequence[int]) -> tuple[str, ...]:
        """What cells have put into the namespaces of some of the living ranks."""
        chosen = {rank: pid for rank, pid in pids.items() if rank in ranks}
        answers = self.ask(chosen, "names", seconds=_NAMES_SECONDS)
        return tuple(sorted({name for names in values_of(answers.items(), list[str]).values() for name in names}))

    def close(self) -> None:
        """Give the connection back."""
        with self._lock:
            self._store = None

    def _await(self, pids: dict[int, int], question: str, deadline: float) -> dict[int, Told]:
        found: dict[int, Told] = {}
        pause = _SHORTEST_PAUSE
        while True:
            for rank in [rank for rank in pids if rank not in found]:
                told = self._take(rank, pids[rank])
                if told is None:
                    continue
                if told.question == self._question:
                    found[rank] = told
                else:  # it had read an older question
                    self._put(rank, pids[rank], question)
            if len(found) == len(pids) or time.monotonic() > deadline:
                return found
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _put(self, rank: int, pid: int, question: str) -> None:
        while self._take(rank, pid) is not None:  # an answer that came too late
            pass
        self._store.set(f"ask/{rank}/{pid}/{self._numbers.get((rank, pid), 1)}", question)

    def _take(self, rank: int, pid: int) -> Told | None:
        """The answer under a rank's present number, if it has come; the rank is at the next number then."""
        number = self._numbers.get((rank, pid), 1)
        key = f"told/{rank}/{pid}/{number}"
        if not self._store.check([key]):
            return None
        told = msgspec.json.decode(self._store.get(key), type=Told)
        self._store.delete_key(key)
        self._store.delete_key(f"ask/{rank}/{pid}/{number}")
        self._numbers[rank, pid] = number + 1
        return told


def values_of(answers: Iterable[tuple[int, Told]], kind: Any) -> dict[int, Any]:
    """The values of answers that have one, read as `kind`."""
    return {rank: msgspec.json.decode(told.value, type=kind) for rank, told in answers if not told.error}
