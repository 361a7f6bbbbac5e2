"""Say how a rank's process ended: exit code, the line it was at, what it wrote last.

A process that dies in C++ raises nothing in Python. faulthandler writes its stacks into a pipe of the rank's own,
which the controller reads here.
"""

import contextlib
import os
import re
import select
import signal
import time

from kit.ranks.errors import Failure, Frame
from kit.ranks.failure import frame_at, is_users

_STACK_LINE = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')
_MOST_BYTES = 1 << 20
# On a cluster the exit code goes another way than what the rank wrote before, and may come first. Its fork server ends
# all that could still write, so the end comes soon; a process that left the rank's group could hold it back.
LATE_SECONDS = 1.0  # for its streams and for its stacks, each
_HINTS = {
    signal.SIGKILL: "somebody killed it, or the kernel did for lack of memory",
    signal.SIGABRT: "C++ code gave up, as gloo does when ranks meet in collectives of different shape or dtype",
    signal.SIGSEGV: "native code read or wrote memory that is not its own",
}


def death_of(rank: int, exit_code: int, *, how: str, crash: int, last_errors: tuple[str, ...]) -> Failure:
    """The failure that a dead rank is; `how` it ended when more is known than the exit code.

    `crash` is the descriptor its stacks can be read from.
    """
    told = [line.strip() for line in last_errors if line.lstrip().startswith("what():")]
    lines = [f"rank {rank} died: {how or _how(exit_code)}", *told]
    lines.append(f"its variables are lost; ranks.replace({rank}) starts it anew and rejoins all ranks")
    return Failure(rank=rank, type=how_it_ended(exit_code), message="\n".join(lines), frames=_frames(crash), died=True)


def how_it_ended(exit_code: int) -> str:
    """An exit code in a word: "SIGKILL" or "exit code 3"."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def _how(exit_code: int) -> str:
    if exit_code == 0:
        return "exit code 0: the code ended the process (os._exit)"
    hint = _HINTS.get(signal.Signals(-exit_code)) if -exit_code in set(signal.Signals) else None
    return how_it_ended(exit_code) + (f": {hint}" if hint else "")


def _frames(crash: int) -> tuple[Frame, ...]:
    """The user's own lines of the thread that ran user code, outermost first."""
    text = _read_to_end(crash)
    for thread in text.decode(errors="replace").split("\n\n"):
        stack = [match.groups() for match in map(_STACK_LINE.match, thread.splitlines()) if match]
        frames = [frame_at(file, int(line), function) for file, line, function in stack if is_users(file)]
        if frames:
            return tuple(reversed(frames))
    return ()


def _read_to_end(fd: int) -> bytes:
    os.set_blocking(fd, False)
    deadline = time.monotonic() + LATE_SECONDS
    ready = select.poll()  # takes descriptors above 1023
    ready.register(fd, select.POLLIN)
    text = b""
    while len(text) < _MOST_BYTES and ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
        chunk = b""
        with contextlib.suppress(OSError):  # a machine of a cluster is gone
            chunk = os.read(fd, _MOST_BYTES)
        if not chunk:
            break
        text += chunk
    return text
