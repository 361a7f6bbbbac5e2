"""What the main thread of this process waits for, as the kernel tells it: nothing in Python shows a wait in C++.

Linux only; where /proc says nothing (another processor than x86-64 and ARM64, a sandbox) the answer is `RUNNING`.
"""

import os
import platform
import socket
import struct
from enum import StrEnum
from pathlib import Path

# Numbers of system calls: those that name a descriptor, those that point to one (struct pollfd), and the futex.
_CALLS = {
    "x86_64": {"direct": (0, 45, 47), "pointed": (7, 271), "futex": (202,)},
    "aarch64": {"direct": (63, 207, 212), "pointed": (73,), "futex": (98,)},
}


class Wait(StrEnum):
    """RUNNING: it computes, or is about to. LOCK: another thread will wake it. STORE: the group's store."""

    RUNNING = "running"
    LOCK = "lock"
    STORE = "store"
    OTHER = "other"


def wait_of_main_thread(store_port: int) -> Wait:
    """What the main thread waits for; `store_port` is where the store listens."""
    task = Path(f"/proc/self/task/{os.getpid()}")
    numbers = _CALLS.get(platform.machine())
    try:
        if (task / "stat").read_text().rpartition(")")[2].split()[0] == "R":
            return Wait.RUNNING
        words = (task / "syscall").read_text().split()
    except OSError:
        return Wait.RUNNING
    if numbers is None or words[0] in ("running", "-1"):
        return Wait.RUNNING
    call, argument = int(words[0]), int(words[1], 16)
    if call in numbers["futex"]:
        return Wait.LOCK
    fd = argument if call in numbers["direct"] else _pointed_to(argument) if call in numbers["pointed"] else None
    return Wait.STORE if fd is not None and _leads_to(fd, store_port) else Wait.OTHER


def _pointed_to(address: int) -> int | None:
    """The descriptor of the `struct pollfd` at an address; read as a file, so that a stale address harms nothing."""
    try:
        with Path("/proc/self/mem").open("rb", buffering=0) as memory:
            return int(struct.unpack("i", os.pread(memory.fileno(), 4, address))[0])
    except (OSError, OverflowError, struct.error):
        return None


def _leads_to(fd: int, port: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(fd)) as duplicate:
            return bool(duplicate.getpeername()[1] == port)
    except (OSError, IndexError, TypeError):  # no socket, not connected, or closed meanwhile
        return False
