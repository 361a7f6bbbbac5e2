"""Pass Slurm's warning on to the ranks of one node, each as soon as it listens.

A batch file runs this on every node once Slurm has said that the time is nearly up. Signalling the whole step instead
would end whatever does not listen (the shell before its trap, programs that a rank has started), and be lost on a rank
that still imports torch.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

_LOOK_SECONDS = 0.2
_RANK = b"LOCAL_RANK"  # torchrun's mark on the processes that it starts


def warn(job: str) -> None:
    """Send SIGUSR2 once to each rank of a Slurm job on this node when it has a handler; return when all have got it."""
    told: set[int] = set()
    while True:
        expected = 0
        for pid, local_world_size in _ranks(job):
            expected = local_world_size
            if pid not in told and _listens(pid):
                with contextlib.suppress(ProcessLookupError):  # it has ended in between
                    os.kill(pid, signal.SIGUSR2)
                told.add(pid)
        if expected and len(told) >= expected:
            return
        time.sleep(_LOOK_SECONDS)


def _ranks(job: str) -> Iterator[tuple[int, int]]:
    """Process ids of the job's ranks on this node, each with their number; not of what the ranks have started."""
    for folder in Path("/proc").glob("[0-9]*"):
        environment = _environment(folder)
        if environment.get(b"SLURM_JOB_ID") == job.encode() and _RANK in environment:
            parent = Path("/proc", _field(folder, "PPid"))
            if _RANK not in _environment(parent):
                yield int(folder.name), int(environment.get(b"LOCAL_WORLD_SIZE", b"1"))


def _listens(pid: int) -> bool:
    caught = int(_field(Path("/proc", str(pid)), "SigCgt"), 16)
    return bool(caught >> (signal.SIGUSR2 - 1) & 1)


def _environment(folder: Path) -> dict[bytes, bytes]:
    """The variables that a process was started with; none when it has ended or is somebody else's."""
    with contextlib.suppress(OSError):
        pairs = (folder / "environ").read_bytes().split(b"\0")
        return {name: value for name, _, value in (pair.partition(b"=") for pair in pairs)}
    return {}


def _field(folder: Path, name: str) -> str:
    """A field of a process's status; "0" when it has ended."""
    with contextlib.suppress(OSError):
        for line in (folder / "status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return line.split()[1]
    return "0"


if __name__ == "__main__":
    warn(os.environ["SLURM_JOB_ID"])
