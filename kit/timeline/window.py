"""The part of a file's text that is being read, in a buffer that pieces are read into.

Nothing is copied on the way: the file fills the buffer, and the decoder reads there. A window that keeps its text grows
to the whole of it, and can be read once more; any other one holds a piece and what was left of the one before.
"""

from typing import Protocol

import numpy as np


class Source(Protocol):
    """Where the text comes from."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the buffer as far as there is text; how much that was, 0 at the end."""


class Window:
    """`view[begin:end]` is what waits to be read; a byte of no meaning or already read stands before it."""

    def __init__(self, source: Source, piece_bytes: int, *, expected_bytes: int | None = None) -> None:
        self.piece_bytes = piece_bytes
        self.begin = self.end = 1
        self._source, self._keeps = source, expected_bytes is not None
        # One byte before the text, one behind it for the read that finds the end.
        self.view = _memory(2 * piece_bytes if expected_bytes is None else expected_bytes + 2)
        self._known = 1  # where the text ends that was read so far

    def __len__(self) -> int:
        return self.end - self.begin

    def more(self) -> bool:
        """Let a piece in; False at the end of the text."""
        if not self._keeps and self.begin > 1:
            rest = self.view[self.begin - 1 : self.end]
            self.view[: len(rest)] = rest
            self.begin, self.end, self._known = 1, len(rest), len(rest)
        if self.end == self._known:
            self._known += self._read()
        before, self.end = self.end, min(self.end + self.piece_bytes, self._known)
        return self.end > before

    def rewound(self) -> "Window":
        """This window at the beginning again; only for one that keeps its text."""
        self.begin = self.end = 1
        return self

    def whole(self) -> bytes:
        """All of a kept text that was read so far."""
        return bytes(self.view[1 : self._known])

    def _read(self) -> int:
        if self._known == len(self.view):
            grown = _memory(len(self.view) * 3 // 2 + self.piece_bytes)
            grown[: self._known] = self.view
            self.view = grown
        return self._source.readinto(self.view[self._known : self._known + self.piece_bytes])


def _memory(size: int) -> memoryview:
    return np.empty(size, np.uint8).data  # a large one comes in huge pages: few page faults
