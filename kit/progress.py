"""Progress as a stream of events.

Work reports what it does; faces show it (a rich bar in a terminal, a widget in JupyterLab, plain
lines under papermill). The work does not know which face listens, and `kit` prints nothing itself.
Events of a rank travel to the notebook and arrive there as if the work had been done there.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum


class State(StrEnum):
    """Where a piece of work stands."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One report about one piece of work.

    `done` of `total` units (`total` None: unknown), `seconds` since the work began,
    `rank` None for work of the notebook itself. `key` tells pieces of work apart.
    """

    key: str
    task: str
    state: State
    done: int
    total: int | None
    message: str
    seconds: float
    rank: int | None = None


Listener = Callable[[Event], None]
_listeners: list[Listener] = []
_lock = threading.Lock()
_numbers = itertools.count()


def subscribe(listener: Listener) -> Callable[[], None]:
    """Call `listener` with every event from now on; returns the call that ends it.

    A listener is called in the thread that reports, so it must be quick and must not raise.
    """
    with _lock:
        _listeners.append(listener)

    def unsubscribe() -> None:
        with _lock:
            if listener in _listeners:
                _listeners.remove(listener)

    return unsubscribe


def emit(event: Event) -> None:
    """Hand an event to every listener."""
    with _lock:
        listeners = tuple(_listeners)
    for listener in listeners:
        listener(event)


class Task:
    """A piece of work under way; made by `task`."""

    def __init__(self, name: str, total: int | None) -> None:
        self._begun = time.monotonic()
        self._event = Event(
            key=f"{name}-{next(_numbers)}",
            task=name,
            state=State.RUNNING,
            done=0,
            total=total,
            message="",
            seconds=0.0,
        )
        emit(self._event)

    def advance(self, message: str = "", *, by: int = 1) -> None:
        """Report `by` more units done, with a word about the present one."""
        self._report(State.RUNNING, self._event.done + by, message)

    def end(self, state: State, message: str = "") -> None:
        """Report that the work is over."""
        self._report(state, self._event.done, message or self._event.message)

    def _report(self, state: State, done: int, message: str) -> None:
        seconds = time.monotonic() - self._begun
        self._event = replace(self._event, state=state, done=done, message=message, seconds=seconds)
        emit(self._event)


@contextmanager
def task(name: str, *, total: int | None = None) -> Iterator[Task]:
    """Report a piece of work: running while the block runs, failed when it raises."""
    work = Task(name, total)
    try:
        yield work
    except BaseException as error:
        work.end(State.FAILED, type(error).__name__)
        raise
    work.end(State.FINISHED)
