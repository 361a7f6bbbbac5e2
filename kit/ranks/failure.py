"""Turn an exception on a rank into plain data.

The person wants the lines of the own cell and functions, not those of torch, the standard library or the kit;
the whole traceback stays beside them as text.
"""

import linecache
import sys
import sysconfig
import traceback
from pathlib import Path
from types import FrameType, TracebackType

from kit.ranks.errors import Failure, Frame

_KIT = str(Path(__file__).resolve().parents[1])
_FOREIGN = tuple({_KIT + "/", sysconfig.get_path("stdlib") + "/", *(
    sysconfig.get_path(name) + "/" for name in ("purelib", "platlib")
)})  # fmt: skip


def is_users(file: str) -> bool:
    """Whether a code file is the person's own: a cell or a module of theirs."""
    if file.startswith("<"):
        return linecache.getlines(file) != []
    return not file.startswith(_FOREIGN)


def frame_at(file: str, line: int, function: str) -> Frame:
    """A place in the code with its source line."""
    return Frame(file=file, line=line, function=function, code=linecache.getline(file, line).strip())


def users_frames(trace: TracebackType | None) -> tuple[Frame, ...]:
    """The user's own frames of a traceback, outermost first; its last frame when none is theirs."""
    summary = [
        frame_at(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in traceback.walk_tb(trace)
    ]
    return tuple(frame for frame in summary if is_users(frame.file)) or tuple(summary[-1:])


def users_stack(frame: FrameType | None) -> tuple[Frame, ...]:
    """The user's own lines of a running stack, outermost first."""
    found: list[Frame] = []
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            found.append(frame_at(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(reversed(found))


def users_line(frame: FrameType | None) -> Frame | None:
    """The innermost user's own line of a running stack."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return frame_at(file, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


def failure_of(error: BaseException, rank: int, *, folded: bool) -> Failure:
    """The failure that an exception on a rank is; never raises, whatever the exception does."""
    return Failure(
        rank=rank,
        type=type(error).__name__,
        message=_message(error),
        frames=users_frames(error.__traceback__),
        text=_text(error),
        folded=folded,
    )


def _message(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"the code called sys.exit({error.code!r}); the rank goes on"
    try:
        return str(error)
    except Exception as broken:  # an exception's own __str__ may do anything
        return f"(its message cannot be shown: {type(broken).__name__})"


def _text(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error)).rstrip()
    except Exception:  # as above; the frames are still there
        return "".join(traceback.format_tb(error.__traceback__)).rstrip()


def line_of_thread(thread: int) -> Frame | None:
    """The user's own line at which a thread of this process is."""
    return users_line(sys._current_frames().get(thread))
