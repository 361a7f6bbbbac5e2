"""The bytes of a trace file, plain or gzip, with a bound on what they unpack to.

Traces come from other people: a few megabytes of gzip may hold gigabytes of nothing.
"""

import gzip
import zlib
from pathlib import Path

from kit.timeline.error import TraceError

MAX_BYTES = 2 << 30
_PIECE = 8 << 20
_GZIP_MAGIC = b"\x1f\x8b"


def read_bytes(path: Path, *, max_bytes: int = MAX_BYTES, strict: bool = True) -> tuple[bytes, bool]:
    """The unpacked bytes of `path`, and whether the file is whole.

    With `strict=False` a gzip stream that breaks off gives what came before the break. Raises `TraceError`
    when the file cannot be read or holds more than `max_bytes`.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP_MAGIC
        if not packed:
            if path.stat().st_size > max_bytes:
                raise _too_big(path, "holds", max_bytes)
            return path.read_bytes(), True
        return _unpack(path, max_bytes, strict=strict)
    except OSError as error:
        raise TraceError(
            f"{path}: cannot be read ({error.strerror or error}); expected a trace in JSON or JSON.gz"
        ) from error


def _unpack(path: Path, max_bytes: int, *, strict: bool) -> tuple[bytes, bool]:
    pieces: list[bytes] = []
    seen = 0
    with gzip.open(path, "rb") as file:
        while True:
            try:
                piece = file.read1(_PIECE)  # read1: what lies before a break is kept
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                if strict:
                    raise TraceError(
                        f"{path}: gzip breaks off after {seen} unpacked bytes ({error}); expected a whole file. "
                        "Copy it again, or read what is there with strict=False"
                    ) from error
                return b"".join(pieces), False
            if not piece:
                return b"".join(pieces), True
            seen += len(piece)
            if seen > max_bytes:
                raise _too_big(path, "unpacks to", max_bytes)
            pieces.append(piece)


def _too_big(path: Path, verb: str, max_bytes: int) -> TraceError:
    return TraceError(
        f"{path}: {verb} more than {max_bytes} bytes, expected at most that. "
        "If you trust the file, raise the bound with max_bytes="
    )
