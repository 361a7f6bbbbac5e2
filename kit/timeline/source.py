"""The bytes of a trace file, plain or gzip, whole or in pieces, with a bound on what they unpack to.

Traces come from other people: a few megabytes of gzip may hold gigabytes of nothing.
"""

import gzip
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kit.timeline.error import TraceError

MAX_BYTES = 2 << 30
_PIECE = 8 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_BROKEN = (EOFError, zlib.error, gzip.BadGzipFile)


class BrokenOffError(TraceError):
    """A gzip stream that breaks off."""


class Stream:
    """The unpacked text of a file, piece by piece. Raises `TraceError` above `max_bytes` and where gzip breaks off."""

    def __init__(
        self, path: Path, file: Any, max_bytes: int, report: Callable[[str], None] | None, *, is_packed: bool
    ) -> None:
        self.is_packed = is_packed
        self._path, self._file, self._max_bytes, self._report = path, file, max_bytes, report
        self._told = time.monotonic()
        self.seen = 0
        self._broken: Exception | None = None

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes more, none at the end. What lies before a break is given before the break is told."""
        pieces: list[bytes] = []

        def take(left: int) -> int:
            pieces.append(self._file.read1(left))
            return len(pieces[-1])

        self._fill(size, take)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def readinto(self, buffer: memoryview, /) -> int:
        """`read` into a buffer; how many bytes came."""
        size = len(buffer)
        return self._fill(size, lambda left: int(self._file.readinto1(buffer[size - left :])))

    def _fill(self, size: int, take: Callable[[int], int]) -> int:
        """Let `take` read as much as is left of `size`, until it has all or there is no more; how much that was."""
        got = 0
        while got < size and self._broken is None:
            try:
                more = take(size - got)  # one read each time, so that what lies before a break is kept
            except _BROKEN as error:
                self._broken = error
                break
            except OSError as error:
                raise _unreadable(self._path, error) from error
            if not more:
                break
            got += more
        if self._broken is not None and not got:
            raise BrokenOffError(
                f"{self._path}: gzip breaks off after {self.seen} unpacked bytes ({self._broken}); expected a whole "
                "file. Copy it again, or read what is there with strict=False"
            ) from self._broken
        self.seen += got
        if self.seen > self._max_bytes:
            raise _too_big(self._path, "unpacks to", self._max_bytes)
        if self._report is not None and time.monotonic() - self._told > 1.0:
            self._told = time.monotonic()
            self._report(f"{self._path.name}: {self.seen / 1e6:.0f} MB")
        return got


def files_of(paths: object, *, endings: tuple[str, ...], expected: str) -> tuple[list[Path], bool]:
    """The files meant by a path or several, and whether they were found in a folder (where strangers are tolerated).

    Of a folder only files with one of the `endings`. Raises `TraceError` for a path that is not there, `TypeError` for
    what is no path.
    """
    if not isinstance(paths, str | Path):
        listed: list[Any] = list(paths) if isinstance(paths, Iterable) else [None]
        if not all(isinstance(path, str | Path) for path in listed):  # bytes are numbers here
            raise TypeError(f"got {paths!r:.80}, expected a path, several, or a folder")
        return [Path(path) for path in listed], False
    path = Path(paths)
    try:
        if path.is_dir():
            return sorted(file for file in path.iterdir() if file.name.endswith(endings) and file.is_file()), True
        path.stat()
    except (OSError, ValueError) as error:  # a name that is too long, or holds a zero byte
        why = "no such file or folder" if isinstance(error, FileNotFoundError) else f"cannot be opened ({error})"
        raise TraceError(f"{str(path)[:200]}: {why}; expected {expected}, or a folder of them") from error
    return [path], False


def is_gzip(path: Path) -> bool:
    """Whether a file is gzip, by its first bytes and not by its name."""
    with path.open("rb") as file:
        return file.read(2) == _GZIP_MAGIC


def first_bytes(path: Path, count: int) -> bytes:
    """The first unpacked bytes of a file, b"" when it cannot be read (reading it then says why)."""
    try:
        with open_stream(path, max_bytes=1 << 62) as stream:
            return stream.read(count)
    except TraceError:
        return b""


@contextmanager
def unpacked(path: Path, *, max_bytes: int = MAX_BYTES) -> Iterator[Path]:
    """A plain file with the unpacked bytes: the file itself, or a temporary one that is gone afterwards."""
    with open_stream(path, max_bytes=max_bytes) as stream:
        if not stream.is_packed:
            yield path
            return
        import tempfile  # 15 ms that most traces need not pay

        with tempfile.NamedTemporaryFile(prefix="kit-trace-") as plain:
            while piece := stream.read(_PIECE):
                plain.write(piece)
            plain.flush()
            yield Path(plain.name)


@contextmanager
def open_stream(
    path: Path, *, max_bytes: int = MAX_BYTES, report: Callable[[str], None] | None = None
) -> Iterator[Stream]:
    """Open a file for reading in pieces. `report` is told how far it is, once a second at most."""
    try:
        is_packed = is_gzip(path)
        if not is_packed and path.stat().st_size > max_bytes:
            raise _too_big(path, "holds", max_bytes)
        opened: Any = gzip.open(path, "rb") if is_packed else path.open("rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise _unreadable(path, error) from error
    with opened:
        yield Stream(path, opened, max_bytes, report, is_packed=is_packed)


def read_bytes(path: Path, *, max_bytes: int = MAX_BYTES, strict: bool = True) -> tuple[bytes, bool]:
    """The unpacked bytes of `path`, and whether the file is whole.

    With `strict=False` a gzip stream that breaks off gives what came before the break. Raises `TraceError`
    when the file cannot be read or holds more than `max_bytes`.
    """
    pieces: list[bytes] = []
    with open_stream(path, max_bytes=max_bytes) as stream:
        if not stream.is_packed:
            return stream.read(path.stat().st_size + 1), True  # in one go: joining pieces would copy all of it
        try:
            while piece := stream.read(_PIECE):
                pieces.append(piece)
        except BrokenOffError:
            if strict:
                raise
            return b"".join(pieces), False
    return b"".join(pieces), True


def _unreadable(path: Path, error: OSError) -> TraceError:
    return TraceError(f"{path}: cannot be read ({error.strerror or error}); expected a trace in JSON or JSON.gz")


def _too_big(path: Path, verb: str, max_bytes: int) -> TraceError:
    return TraceError(
        f"{path}: {verb} more than {max_bytes} bytes, expected at most that. "
        "If you trust the file, raise the bound with max_bytes="
    )
