"""Find and cut this process's own sockets by inode.

gloo gives no way to free a rank that waits in a collective; shutting its sockets does, within milliseconds
(measured on torch 2.13, 2 and 4 ranks). A listening socket is never shut: gloo's accept loop would end the process.
"""

import os
import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

_LINK = re.compile(r"socket:\[(\d+)\]")


def inodes() -> set[str]:
    """Inodes of the sockets this process has open."""
    return {inode for _, inode in _open_sockets()}


def cut(owned: Iterable[str]) -> int:
    """Shut both directions of the connected sockets among `owned`; how many were shut."""
    wanted, count = set(owned), 0
    for fd, inode in list(_open_sockets()):
        if inode in wanted:
            count += _shut(fd)
    return count


def _open_sockets() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc/self/fd").iterdir():
        try:
            match = _LINK.fullmatch(str(entry.readlink()))
        except OSError:  # closed meanwhile
            continue
        if match:
            yield int(entry.name), match[1]


def _shut(fd: int) -> bool:
    """Shut a connected socket through a duplicate, since its owner may close it at any moment."""
    try:
        with socket.socket(fileno=os.dup(fd)) as duplicate:
            if duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return False
            duplicate.getpeername()
            duplicate.shutdown(socket.SHUT_RDWR)
    except OSError:  # not connected, or closed meanwhile
        return False
    return True
