"""Keep what large traces were read into, under the hash of their content.

Reading 500 MB takes seconds of CPU, reading the columns again a tenth of one. The key is the content (and the file's
name, which may tell the rank), so a trace that was copied or touched is known, and one that was written anew is not.
The folder is `$KIT_CACHE`, else `static-graph-kit/timelines` in the user's cache folder; `KIT_CACHE=off` turns it off.
"""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

from kit.archive import ArchiveError, load, save
from kit.timeline.record import Timeline

MAX_BYTES = 2 << 30  # the least recently used go first
_READER = "1"  # raised when the same file would be read into other columns
_PIECE = 4 << 20


def folder() -> Path | None:
    """Where timelines are kept; None when the cache is off."""
    said = os.environ.get("KIT_CACHE", "")
    if said.lower() in ("off", "0", "no", "false"):
        return None
    if said:
        return Path(said).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(home) if home else Path.home() / ".cache") / "static-graph-kit" / "timelines"
    except RuntimeError:  # a user without a home
        return None


def entry_of(file: Path, *, strict: bool) -> Path | None:
    """Where the timeline of this file is or would be kept; None when the cache is off or the file unreadable."""
    home = folder()
    if home is None:
        return None
    content = hashlib.blake2b(f"{_READER} {strict} {file.name}\n".encode(), digest_size=20)
    try:
        with file.open("rb") as opened:
            while piece := opened.read(_PIECE):
                content.update(piece)
    except OSError:
        return None
    return home / f"{content.hexdigest()}.kit"


def recall(entry: Path, file: Path) -> Timeline | None:
    """The kept timeline, as if read from `file` just now; None when there is none (one that is damaged is removed)."""
    if not entry.is_file():
        return None
    try:
        timeline = load(entry)
        os.utime(entry)
    except (ArchiveError, OSError, EOFError, KeyError, ValueError):
        entry.unlink(missing_ok=True)
        return None
    if not isinstance(timeline, Timeline) or len(timeline.parts) != 1:
        entry.unlink(missing_ok=True)
        return None
    return replace(timeline, parts=(replace(timeline.parts[0], source=str(file)),))


def keep(timeline: Timeline, entry: Path, *, max_bytes: int = MAX_BYTES) -> None:
    """Keep a timeline, and forget the least recently used ones above `max_bytes` in all.

    A full or read-only disk is no reason to fail a read: then nothing is kept.
    """
    try:
        entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        save(timeline, entry, level=0)
        _forget(entry.parent, max_bytes)
    except OSError:
        return


def _forget(home: Path, max_bytes: int) -> None:
    seen = sorted(((file.stat(), file) for file in home.glob("*.kit")), key=lambda pair: -pair[0].st_mtime_ns)
    total = 0
    for status, file in seen:
        total += status.st_size
        if total > max_bytes:
            file.unlink(missing_ok=True)
