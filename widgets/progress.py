"""Faces for progress events: rows in JupyterLab, plain lines under papermill, bars in a terminal.

Events come from any thread. They only change a board; one painter thread draws it, five times a
second at most, so no face needs a lock and no thread of the kit ever waits for a picture. Work
shorter than two seconds is never shown: people need no bar for what is over before they look.
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kit import progress

PATIENCE_SECONDS = 2.0
PAINT_SECONDS = 0.2
LINE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One piece of work as it is shown: its last event and how long it has run."""

    event: progress.Event
    seconds: float

    @property
    def is_over(self) -> bool:
        """Whether the work finished or failed."""
        return self.event.state is not progress.State.RUNNING

    def __str__(self) -> str:
        event = self.event
        who = f"rank {event.rank}: " if event.rank is not None else ""
        parts = [f"{event.done}/{event.total}" if event.total else "", event.message]
        where = ", ".join(part for part in parts if part)
        took = f"{self.seconds:.1f} s"
        if event.state is progress.State.FINISHED:
            return f"{who}{event.task}: finished in {took}"
        if event.state is progress.State.FAILED:
            return f"{who}{event.task}: failed after {took}" + (f" ({event.message})" if event.message else "")
        return f"{who}{event.task}: {where}, {took}" if where else f"{who}{event.task}: {took}"


class Face(Protocol):
    """Draws rows. `draw` is called by one thread at a time, with all rows that are to be seen."""

    def draw(self, rows: Sequence[Row]) -> None:
        """Show these rows, in place of those shown before."""


class Board:
    """The present state of all work, changed by events from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._latest: dict[str, tuple[progress.Event, float]] = {}
        self._shown: set[str] = set()

    def note(self, event: progress.Event) -> None:
        """Take an event."""
        with self._lock:
            self._latest[_key_of(event)] = (event, self._clock())

    def take_rows(self) -> list[Row]:
        """Rows to draw now, in the order in which the work began.

        Work that is over is handed out once and forgotten; work that ended before it was ever shown
        is not handed out at all.
        """
        rows = []
        with self._lock:
            for key, (event, seen) in list(self._latest.items()):
                over = event.state is not progress.State.RUNNING
                seconds = event.seconds if over else event.seconds + self._clock() - seen
                if key in self._shown or (not over and seconds >= PATIENCE_SECONDS):
                    self._shown.add(key)
                    rows.append(Row(event=event, seconds=seconds))
                if over:
                    del self._latest[key]
                    self._shown.discard(key)
        return rows

    def is_idle(self) -> bool:
        """Whether no work is under way."""
        with self._lock:
            return not self._latest


def _key_of(event: progress.Event) -> str:
    """Ranks number their work independently, so their keys are told apart by rank."""
    return f"{event.rank}/{event.key}"


class Painter:
    """Draws a board on a face from one thread, which sleeps while nothing runs."""

    def __init__(self, face: Face) -> None:
        self._face = face
        self._board = Board()
        self._drawing = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._unsubscribe = progress.subscribe(self._note)
        self._thread = threading.Thread(target=self._paint_on, name="kit-progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Draw what is left and stop listening."""
        self._unsubscribe()
        self._closed = True
        self._wake.set()
        self._thread.join(timeout=5)
        self.paint()

    def paint(self) -> None:
        """Draw the board as it is now."""
        with self._drawing:
            rows = self._board.take_rows()
            if rows:
                self._face.draw(rows)

    def _note(self, event: progress.Event) -> None:
        self._board.note(event)
        self._wake.set()
        # The end is drawn in the reporting thread: else its cell may be over before the painter comes.
        if event.state is not progress.State.RUNNING:
            self.paint()

    def _paint_on(self) -> None:
        while not self._closed:
            self._wake.wait()
            self.paint()
            if self._board.is_idle():
                self._wake.clear()
                if not self._board.is_idle():
                    self._wake.set()
            time.sleep(PAINT_SECONDS)


class LineFace:
    """Plain lines, for papermill and pipes: when work is first shown, every five seconds, at its end."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._said: dict[str, float] = {}

    def draw(self, rows: Sequence[Row]) -> None:
        """Write the lines that are due."""
        for row in rows:
            key, now = _key_of(row.event), self._clock()
            if row.is_over:
                self._said.pop(key, None)
            elif now - self._said.get(key, -LINE_SECONDS) < LINE_SECONDS:
                continue
            else:
                self._said[key] = now
            self._write(f"{row}\n")


class TerminalFace:
    """Bars of rich, below what the program prints."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskID, TextColumn

        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            console=Console(stderr=True),
            transient=True,
        )
        self._ids: dict[str, TaskID] = {}

    def draw(self, rows: Sequence[Row]) -> None:
        """Move the bars; work that is over leaves one line."""
        if not self._ids:
            self._bars.start()
        for row in rows:
            key = _key_of(row.event)
            if key not in self._ids:
                self._ids[key] = self._bars.add_task("", total=row.event.total)
            bar = self._ids[key]
            self._bars.update(bar, description=str(row), completed=row.event.done)
            if row.is_over:
                self._bars.console.print(str(row), highlight=False, markup=False)
                self._bars.remove_task(self._ids.pop(key))
        if not self._ids:
            self._bars.stop()


def choose_face() -> Face:
    """The face for where this process runs."""
    from widgets import notebook

    kernel = notebook.find_kernel()
    if kernel is not None:
        # Jupyter's server names the document a kernel serves; papermill and nbclient have no server.
        if "JPY_SESSION_NAME" in os.environ:
            return notebook.RowsFace(kernel)
        return LineFace(notebook.CellWriter(kernel).write)
    if sys.stderr.isatty():
        return TerminalFace()
    return LineFace(_write_to_stderr)


def _write_to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


_painter: Painter | None = None


def show() -> None:
    """Show the progress of the kit from now on, in the way that fits where this runs.

    Calling it again changes nothing. `hide` ends it.
    """
    global _painter
    if _painter is None:
        _painter = Painter(choose_face())
        atexit.register(hide)


def hide() -> None:
    """Show no progress any more."""
    global _painter
    painter, _painter = _painter, None
    if painter is not None:
        painter.close()
        atexit.unregister(hide)
