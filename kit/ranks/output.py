"""What ranks and their child processes write, line by line and labelled.

One thread reads the pipes of all ranks of a group and only puts lines into a queue: a thread that printed would print
into the wrong cell. The thread that waits for a call takes the lines out and hands them to the sink.
While nobody waits the oldest lines are dropped beyond a limit; while somebody does, the ranks are slowed instead.
"""

import contextlib
import fcntl
import os
import select
import selectors
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Literal

Stream = Literal["stdout", "stderr"]
Sink = Callable[[int, Stream, str], None]

MAX_LINES_WAITING = 20_000
_CHUNK = 1 << 20  # more than a pipe holds
_LAST_LINES = 8


def write_labelled(rank: int, stream: Stream, text: str) -> None:
    """The default sink: `[rank 0] text` on the notebook's standard output."""
    sys.stdout.write(f"[rank {rank}] {text}\n")


def discard(rank: int, stream: Stream, text: str) -> None:
    """A sink that shows nothing."""


class _Pipe:
    """One stream of one rank, and the line that has not ended yet."""

    def __init__(self, rank: int, stream: Stream, fd: int) -> None:
        self.rank, self.stream, self.fd = rank, stream, fd
        self._begun = b""

    def split(self, chunk: bytes) -> list[str]:
        """Lines that a chunk completes."""
        *lines, self._begun = (self._begun + chunk).split(b"\n")
        return [_shown(line) for line in lines]

    @property
    def is_within_line(self) -> bool:
        """Whether there is a line that has not ended."""
        return self._begun != b""

    def take_unfinished(self) -> list[str]:
        """The line without an end, if there is one."""
        begun, self._begun = self._begun, b""
        return [_shown(begun)] if begun else []


class Output:
    """The queue of lines of one group. `wake` is readable when lines wait."""

    def __init__(self) -> None:
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._changed = threading.Condition()
        self._selector = selectors.DefaultSelector()
        self._pipes: dict[int, _Pipe] = {}
        self._lines: deque[tuple[int, Stream, str]] = deque()
        self._last: dict[int, deque[str]] = {}
        self._dropped = 0
        self.someone_waits = False  # somebody takes lines: nothing is dropped
        self._closed = False
        self._stop_read, self._stop_write = os.pipe()
        self._selector.register(self._stop_read, selectors.EVENT_READ)
        self._ready = select.poll()  # the pipes once more, for the thread that asks what is there now
        self._thread = threading.Thread(target=self._read_all, name="kit-ranks-output", daemon=True)
        self._thread.start()

    def add(self, rank: int, out: int, err: int) -> None:
        """Read a rank's streams from now on; the descriptors are closed at their end or by `close`."""
        with self._changed:
            self._last[rank] = deque(maxlen=_LAST_LINES)
            streams: tuple[tuple[Stream, int], ...] = (("stdout", out), ("stderr", err))
            for stream, fd in streams:
                fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK)
                self._pipes[fd] = _Pipe(rank, stream, fd)
                self._selector.register(fd, selectors.EVENT_READ)
                self._ready.register(fd, select.POLLIN)

    def last_errors(self, rank: int) -> tuple[str, ...]:
        """The last lines that a rank wrote to stderr."""
        with self._changed:
            return tuple(self._last.get(rank, ()))

    def drain(self, sink: Sink) -> None:
        """Hand the lines that wait to the sink."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake)
        with self._changed:
            lines, self._lines = self._lines, deque()
            dropped, self._dropped = self._dropped, 0
            self._changed.notify_all()
        for n, (rank, stream, text) in enumerate(lines):
            if dropped and n == 0:
                text = f"... {dropped} earlier lines dropped ...\n{text}"
            sink(rank, stream, text)

    def drain_all(self, sink: Sink) -> None:
        """As `drain`, with all that the ranks have written up to now, unfinished lines too."""
        with self._changed:
            for fd, _ in self._ready.poll(0):
                self._read(self._pipes[fd])
            for pipe in self._pipes.values():
                if pipe.is_within_line:
                    self._put(pipe, pipe.take_unfinished())
            if not self._lines:
                return
        self.drain(sink)

    def await_end(self, rank: int, *, seconds: float) -> None:
        """Wait until all has been read that a rank wrote before it ended."""
        with self._changed:
            self._changed.wait_for(lambda: all(pipe.rank != rank for pipe in self._pipes.values()), seconds)

    def close(self) -> None:
        """Stop reading and close the descriptors."""
        with self._changed:
            if self._closed:
                return
            os.write(self._stop_write, b"x")  # while the reader cannot end yet: it closes this descriptor
            self._closed = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:  # a finalizer may run in any thread
            self._thread.join()

    def _read_all(self) -> None:
        try:
            self._read_until_closed()
        finally:
            for fd in (*self._pipes, self._stop_read, self._stop_write, self.wake):
                os.close(fd)
            self._selector.close()

    def _read_until_closed(self) -> None:
        while not self._closed:
            ready = self._selector.select()
            with self._changed:
                while self.someone_waits and len(self._lines) >= MAX_LINES_WAITING and not self._closed:
                    self._changed.wait(0.1)
                for key, _ in ready:
                    pipe = self._pipes.get(key.fd)
                    if pipe is not None:
                        self._read(pipe)

    def _read(self, pipe: _Pipe) -> None:
        try:
            chunk = os.read(pipe.fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:  # a machine of a cluster is gone
            chunk = b""
        if chunk:
            self._put(pipe, pipe.split(chunk))
            return
        self._put(pipe, pipe.take_unfinished())
        self._selector.unregister(pipe.fd)
        self._ready.unregister(pipe.fd)
        del self._pipes[pipe.fd]
        os.close(pipe.fd)
        self._changed.notify_all()

    def _put(self, pipe: _Pipe, lines: list[str]) -> None:
        if not lines:
            return
        if pipe.stream == "stderr":
            self._last[pipe.rank].extend(lines)
        self._lines.extend((pipe.rank, pipe.stream, line) for line in lines)
        while not self.someone_waits and len(self._lines) > MAX_LINES_WAITING:
            self._lines.popleft()
            self._dropped += 1
        os.eventfd_write(self.wake, 1)


def _shown(line: bytes) -> str:
    """A line as a terminal would leave it: a carriage return goes back to its beginning."""
    return line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
