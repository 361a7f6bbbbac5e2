"""Connections between a rank on some machine and the notebook, opened from the rank's side and proved on both.

On one machine a rank inherits pipes. On a cluster its streams are TCP sockets instead: the same five, so that
everything above them is the same. Both ends prove with an HMAC that they know the group's secret before anything is
read from the connection, because commands are pickles. What follows is neither encrypted nor signed: whoever can
change packets on the way between the machines can change commands.
"""

import contextlib
import fcntl
import hmac
import json
import secrets
import select
import socket
import struct
import termios
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

Channel = Literal["control", "crash", "out", "err", "status", "life"]
OF_A_RANK: tuple[Channel, ...] = ("control", "crash", "out", "err", "status")

_NONCE_BYTES = 32
_MAC_BYTES = 32
_LABEL_BYTES = 256
_HANDSHAKE_SECONDS = 5.0
_LOOK_SECONDS = 0.1
_DELIVERY_SECONDS = 5.0
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What a connection is: `number` is the rank, or the engine for "life"; `life` counts the processes started."""

    number: int
    life: int
    channel: Channel


class NoConnectionError(OSError):
    """The connections that were waited for did not come."""


class Landing:
    """The controller's listening socket, bound to one address; it takes the connections that it is told to expect."""

    def __init__(self, host: str) -> None:
        self._listener = socket.create_server((host, 0))
        self.secret = secrets.token_bytes(_NONCE_BYTES)

    @property
    def address(self) -> tuple[str, int]:
        """Where ranks connect."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def accept(
        self, wanted: Sequence[Label], *, seconds: float, still: Callable[[], None] | None = None
    ) -> dict[Label, socket.socket]:
        """The wanted connections. `still()` is called while waiting and may raise to give up.

        Strangers and wrong secrets are dropped. Raises `NoConnectionError` when time is over.
        """
        found: dict[Label, socket.socket] = {}
        deadline = time.monotonic() + seconds
        try:
            while len(found) < len(wanted):
                if still is not None:
                    still()
                if time.monotonic() > deadline:
                    raise NoConnectionError(
                        f"{len(found)} of {len(wanted)} connections came to {self.address[0]}:{self.address[1]} "
                        f"within {seconds:g} s"
                    )
                if not select.select([self._listener], [], [], _LOOK_SECONDS)[0]:
                    continue
                connection, _ = self._listener.accept()
                label = self._greet(connection)
                if label is None or label in found or label not in wanted:
                    connection.close()
                else:
                    found[label] = connection
        except BaseException:
            for connection in found.values():
                connection.close()
            raise
        return found

    def _greet(self, connection: socket.socket) -> Label | None:
        """The label of a connection that knows the secret; None for another."""
        try:
            connection.settimeout(_HANDSHAKE_SECONDS)
            mine = secrets.token_bytes(_NONCE_BYTES)
            connection.sendall(mine)
            body = _exactly(connection, _LABEL_BYTES)
            theirs = _exactly(connection, _NONCE_BYTES)
            if not hmac.compare_digest(
                _exactly(connection, _MAC_BYTES), _mac(self.secret, b"rank", mine, theirs, body)
            ):
                return None
            connection.sendall(_mac(self.secret, b"notebook", mine, theirs, body))
            _tune(connection)
            return Label(**json.loads(body))
        except (OSError, EOFError, ValueError, TypeError):
            return None

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()


def connect(address: tuple[str, int], secret: bytes, label: Label) -> socket.socket:
    """A connection to the controller that both sides have proved. Raises OSError."""
    connection = socket.create_connection(address, timeout=_HANDSHAKE_SECONDS)
    try:
        body = json.dumps(asdict(label)).encode().ljust(_LABEL_BYTES)
        theirs = _exactly(connection, _NONCE_BYTES)
        mine = secrets.token_bytes(_NONCE_BYTES)
        connection.sendall(body + mine + _mac(secret, b"rank", theirs, mine, body))
        if not hmac.compare_digest(_exactly(connection, _MAC_BYTES), _mac(secret, b"notebook", theirs, mine, body)):
            raise OSError(f"{address[0]}:{address[1]} does not know the secret of this group; expected the notebook")
        _tune(connection)
    except EOFError as error:
        connection.close()
        raise OSError(f"{address[0]}:{address[1]} closed the connection before it was proved") from error
    except BaseException:
        connection.close()
        raise
    return connection


def await_delivery(fd: int, *, seconds: float = _DELIVERY_SECONDS) -> None:
    """Wait until the other machine has received what was written to a TCP socket; returns at once for a pipe.

    What a cell and its child processes write goes another way than the cell's answer, and would else come after it.
    """
    deadline = time.monotonic() + seconds
    pause = 0.0
    while _bytes_under_way(fd) and time.monotonic() < deadline:
        time.sleep(pause)
        pause = 0.001


def _bytes_under_way(fd: int) -> int:
    """Bytes in the send queue of a TCP socket that the other side has not acknowledged; 0 for anything else."""
    with contextlib.suppress(OSError):
        count: int = struct.unpack("i", fcntl.ioctl(fd, termios.TIOCOUTQ, b"\0\0\0\0"))[0]
        return count
    return 0


def _tune(connection: socket.socket) -> None:
    """Blocking, prompt, and noticed within half a minute when the other machine vanishes."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _mac(secret: bytes, who: bytes, *parts: bytes) -> bytes:
    return hmac.digest(secret, b"|".join((who, *parts)), "sha256")


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts: list[bytes] = []
    while count:
        part = connection.recv(count)
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
