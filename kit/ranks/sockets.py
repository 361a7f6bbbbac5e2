"""Find and cut this process's own sockets by inode.

gloo gives no way to free a rank that waits in a collective; shutting its sockets does, within milliseconds
(measured on torch 2.13, 2 and 4 ranks). A listening socket is never shut: gloo's accept loop would end the process.
A rank that waits there for a peer to connect is freed by connecting in the peer's place.
"""

import contextlib
import fcntl
import os
import re
import socket
import struct
import termios
from collections.abc import Iterable, Iterator
from pathlib import Path

_LINK = re.compile(r"socket:\[(\d+)\]")
_NUMBER = struct.Struct("q")  # gloo's sequence_number_t
_CONNECT_SECONDS = 1.0
_LAST_DATA = struct.Struct("44xI4xI")  # of the kernel's tcp_info: milliseconds since data were sent and received
_JUST_NOW_MILLISECONDS = 40  # under the grace of a first failure: who waits by then has been silent for longer


def inodes() -> set[str]:
    """Inodes of the sockets this process has open."""
    return {inode for _, inode in _open_sockets()}


def cut(owned: Iterable[str]) -> dict[str, socket.socket]:
    """End reading on the connected sockets among `owned`; duplicates of them by inode, to be closed with the group.

    Only reading, and the duplicates keep gloo's own close from reaching the other side: a gloo thread that is told
    "the other side is ready to receive" and finds its writing end broken forgets to wake who waits for that send
    (gloo's Pair::handleRemotePendingRecv: the operation is in no queue when the error is told; seen on torch 2.13).
    """
    wanted = set(owned)
    shut = {inode: _shut(fd) for fd, inode in list(_open_sockets()) if inode in wanted}
    return {inode: duplicate for inode, duplicate in shut.items() if duplicate is not None}


def hang_up_on(owned: Iterable[str], *, peers: int) -> None:
    """Connect to the listening sockets among `owned` as each of `peers` ranks would, and close the connection.

    Of two ranks one listens, for as long as a collective may take, for the other to connect and to say its number in
    the group (gloo's Listener, Context::createAndConnectAllPairs). When the other has left in between it would wait for
    a day. The connection that ends at once is an error to it; where nobody waits gloo forgets it.
    """
    wanted = set(owned)
    for fd, inode in list(_open_sockets()):
        with contextlib.suppress(OSError):  # closed meanwhile
            address = _where_it_listens(fd) if inode in wanted else None
            if address is None:
                continue
            for peer in range(peers):
                with socket.create_connection(address, timeout=_CONNECT_SECONDS) as connection:
                    connection.sendall(_NUMBER.pack(peer))


def carry(owned: Iterable[str], *, besides_port: int) -> bool:
    """Whether a connection among `owned`, but those to `besides_port`, has moved bytes just now or has some waiting.

    A transfer that is under way must not be cut: gloo takes a message that it has read or written in part out of the
    queues that it goes through to tell of an error, and who waits for it does so for ever (Pair::signalException; seen
    on torch 2.13 with 12 MB messages, 3 of 14 stops).
    """
    wanted = set(owned)
    for fd, inode in list(_open_sockets()):
        with contextlib.suppress(OSError):  # closed meanwhile, or not TCP
            if inode in wanted and _carries(fd, besides_port):
                return True
    return False


def _carries(fd: int, besides_port: int) -> bool:
    with socket.socket(fileno=os.dup(fd)) as duplicate:
        if duplicate.getpeername()[1] == besides_port:
            return False
        info = duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA.size)
        waiting = [fcntl.ioctl(duplicate, queue, bytes(4)) for queue in (termios.FIONREAD, termios.TIOCOUTQ)]
    sent_ago, received_ago = _LAST_DATA.unpack(info)
    return any(map(any, waiting)) or min(sent_ago, received_ago) < _JUST_NOW_MILLISECONDS


def _where_it_listens(fd: int) -> tuple[str, int] | None:
    """The address of a listening TCP socket, None of another."""
    with socket.socket(fileno=os.dup(fd)) as duplicate:
        is_ours = duplicate.family in (socket.AF_INET, socket.AF_INET6)
        if is_ours and duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            host, port = duplicate.getsockname()[:2]
            return str(host), int(port)
    return None


def _open_sockets() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc/self/fd").iterdir():
        try:
            match = _LINK.fullmatch(str(entry.readlink()))
        except OSError:  # closed meanwhile
            continue
        if match:
            yield int(entry.name), match[1]


def _shut(fd: int) -> socket.socket | None:
    """End reading on a connected socket through a duplicate, since its owner may close it at any moment."""
    try:
        duplicate = socket.socket(fileno=os.dup(fd))
    except OSError:  # closed meanwhile
        return None
    try:
        if not duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            duplicate.getpeername()
            duplicate.shutdown(socket.SHUT_RD)
            return duplicate
    except OSError:  # not connected
        pass
    duplicate.close()
    return None
