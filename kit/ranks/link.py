"""A connection between the notebook and a rank: frames there, frames back.

A message is a head (how many frames, how long its front is), the front (an entry for each frame, then the frames that
are small) and what is large. When all is small, as in most calls, the count is 0 and the front a pickle of the frames:
one write and two reads, with nothing done frame by frame. Large frames go through shared memory where both ends are on
one machine (`pool.py`, and `loan.py` for what is larger still), else through the socket, read right into their place.
"""

import os
import pickle
import struct
from collections.abc import Sequence

from kit.ranks import loan
from kit.ranks.loan import Loan
from kit.ranks.pool import Pooled, Segment
from kit.ranks.rooms import room

Frame = bytes | bytearray | memoryview
Frames = list[Frame]
Parts = Sequence[Frame | Loan | Pooled]

SMALL_BYTES = 1 << 16  # such frames go out in one write
_HEAD = struct.Struct("<II")
_ENTRY = struct.Struct("<BQQ")  # how it comes, bytes, where
_INLINE, _BEHIND, _LENT, _POOLED, _SEGMENT = range(5)  # the last is no frame: the memory in which the pooled ones are


def packed_small(parts: Parts) -> bytes | None:
    """The whole message when it is small, the same for every rank; None for another."""
    small: list[bytes | bytearray] = []
    total = 0
    for part in parts:
        if isinstance(part, (Loan, Pooled)):
            return None
        total += len(part)
        if total >= SMALL_BYTES:
            return None
        small.append(part if isinstance(part, bytes) else bytearray(part))
    front = pickle.dumps(small, 5)
    return _HEAD.pack(0, len(front)) + front


class Link:
    """One end of a connection over descriptor `fd`, which it owns."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._sent: Segment | None = None  # the one of ours that the other side has
        self._reader = 0
        self._received: Segment | None = None
        self._mark = 0
        self.is_local = loan.can_lend(fd)

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd

    def close(self) -> None:
        """Close it; does nothing the second time."""
        if self._received is not None:
            self._received.close()
            self._received = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def write(self, message: bytes) -> None:
        """Write what `packed_small` gave. Raises OSError when the other side is gone."""
        written = os.write(self._fd, message)
        if written < len(message):
            _write(self._fd, memoryview(message)[written:])

    def send(self, parts: Parts) -> None:
        """Write frames; blocks until the other side has taken them. Raises OSError when it is gone."""
        small = packed_small(parts)
        if small is not None:
            self.write(small)
            return
        entries: list[bytes] = []
        inline: list[bytes | memoryview] = []
        behind: list[bytes | memoryview | Loan] = []
        for part in parts:
            if isinstance(part, Pooled) and self.is_local:
                self._introduce(part.segment, entries, behind)
                entries.append(_ENTRY.pack(_POOLED, part.view.nbytes, part.offset))
                continue
            if isinstance(part, Loan) and self.is_local:
                entries.append(_ENTRY.pack(_LENT, part.view.nbytes, 0))
                behind.append(part)
                continue
            raw = memoryview(part.view if isinstance(part, (Loan, Pooled)) else part).cast("B")
            small_one = raw.nbytes < SMALL_BYTES
            entries.append(_ENTRY.pack(_INLINE if small_one else _BEHIND, raw.nbytes, 0))
            (inline if small_one else behind).append(raw)
        front = b"".join([*entries, *inline])
        _write(self._fd, _HEAD.pack(len(entries), len(front)) + front)
        for large in behind:
            if isinstance(large, Loan):
                loan.give(self._fd, large)
            else:
                _write(self._fd, large)

    def receive(self) -> Frames:
        """Read what `send` wrote. Raises EOFError or OSError when the other side is gone."""
        fd = self._fd
        head = os.read(fd, _HEAD.size)
        count, length = _HEAD.unpack(head if len(head) == _HEAD.size else _read(fd, _HEAD.size, head))
        if count == 0:
            packed = os.read(fd, length)
            small: Frames = pickle.loads(packed if len(packed) == length else _read(fd, length, packed))
            return small
        front = _read(fd, length) if length < 2 * SMALL_BYTES else _read_into(fd, room(length))
        at = count * _ENTRY.size
        frames: Frames = []
        was_pooled = False
        for kind, size, where in _ENTRY.iter_unpack(front[:at]):
            if kind == _INLINE:
                frames.append(bytearray(front[at : at + size]))  # a tensor over it must be writable
                at += size
            elif kind == _BEHIND:
                frames.append(_read_into(fd, room(size)))
            elif kind == _LENT:
                frames.append(memoryview(loan.take(fd, size)))
            elif kind == _SEGMENT:
                self._take_segment(size, where)
            else:
                frames.append(self._copied(size, where))
                was_pooled = True
        if was_pooled and self._received is not None:
            self._received.mark(self._mark, False)
        return frames

    def _introduce(self, segment: Segment, entries: list[bytes], behind: list[bytes | memoryview | Loan]) -> None:
        """Tell the other side of the memory that frames are in, once, and mark that it reads there."""
        if self._sent is not segment:
            self._sent, self._reader = segment, segment.readers
            segment.readers += 1
            entries.append(_ENTRY.pack(_SEGMENT, segment.size, self._reader))
            behind.append(Loan(fd=segment.fd, view=memoryview(b"")))
        segment.mark(self._reader, True)

    def _take_segment(self, size: int, mark: int) -> None:
        if self._received is not None:
            self._received.close()
            self._received = None
        self._received, self._mark = Segment(loan.take_descriptor(self._fd), size), mark

    def _copied(self, size: int, where: int) -> memoryview:
        assert self._received is not None, "the memory of pooled frames is told before they are"
        copy = room(size)
        self._received.read(where, copy)
        return copy


def _write(fd: int, part: bytes | memoryview) -> None:
    rest = memoryview(part).cast("B")
    while rest:
        rest = rest[os.write(fd, rest) :]


def _read(fd: int, length: int, found: bytes = b"") -> bytes:
    """Exactly so many bytes, few, of which some were read already."""
    while len(found) < length:
        more = os.read(fd, length - len(found))
        if not more:
            raise EOFError("the other side is gone")
        found += more
    return found


def _read_into(fd: int, there: memoryview) -> memoryview:
    rest = there
    while rest:
        count = os.readv(fd, [rest])
        if count == 0:
            raise EOFError("the other side is gone")
        rest = rest[count:]
    return there
