"""The controller's side of the fork server: start it once, ask it for ranks, end it.

It stays when a group is closed, so that the next one starts in about half a second instead of the seconds
that importing torch takes; `shutdown` ends it, and it ends by itself with this process.
"""

import atexit
import contextlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kit.ranks.errors import LaunchError
from kit.ranks.link import Link
from kit.ranks.zygote import ForkRequest, receive_pickle

_MAIN = "import sys; sys.path[:0] = [{root!r}]; from kit.ranks.zygote import main; main({fd}, {controller})"
_EXIT_SECONDS = 2.0


@dataclass(slots=True, kw_only=True)
class RankProcess:
    """The controller's ends of one rank; `out`, `err` and `crash` are read by others, who also close them."""

    rank: int
    pid: int
    connection: Link
    status: Connection
    out: int
    err: int
    crash: int
    host: str = ""  # "": this machine
    engine: int | None = None  # the ipyparallel engine that has started it
    how: str = ""  # how it ended, when more is known than the exit code
    exit_code: int | None = None
    functions: set[int] = field(default_factory=set)  # numbers of those that it has

    def reap(self) -> int:
        """The exit code; call it when `status` is readable."""
        if self.exit_code is None:
            self.exit_code = -signal.SIGKILL  # unless told otherwise: the fork server is gone and took its ranks along
            with contextlib.suppress(OSError, struct.error):
                (self.exit_code,) = struct.unpack("<i", os.read(self.status.fileno(), 4))
        return self.exit_code

    def kill(self) -> None:
        """End the process and what it has started at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the controller's ends that nobody else reads."""
        self.connection.close()
        self.status.close()
        os.close(self.crash)


class ForkServer:
    """A process that has imported torch and forks ranks."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        code = _MAIN.format(root=str(Path(__file__).parents[2]), fd=theirs.fileno(), controller=os.getpid())
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # torch warns with a C++ stack of forty lines whenever the guard cuts a store's connection
                env={"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ},
                start_new_session=True,  # a Ctrl-C in the terminal is the controller's, which tells the ranks
            )
        self._lock = threading.Lock()
        self._ready = False

    @property
    def pid(self) -> int:
        """Process id of the fork server."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def wait_ready(self) -> None:
        """Wait until torch is imported there. Raises `LaunchError` when that failed."""
        with self._lock:
            if self._ready:
                return
            try:
                trouble = receive_pickle(self._socket)
            except (EOFError, OSError):
                code = self._process.wait()
                raise LaunchError(
                    f"the fork server ended with status {code} while it imported torch; expected it to stay. "
                    "Try `import torch.distributed` in a fresh interpreter to see why."
                ) from None
            if trouble is not None:
                raise LaunchError(f"the fork server could not import what ranks need:\n{trouble}")
            self._ready = True

    def fork(self, spec: Any, environment: dict[str, str]) -> RankProcess:
        """Make a rank; `environment` is the whole of its environment."""
        control, their_control = socket.socketpair()
        pipes = [os.pipe() for _ in range(4)]  # crash, out, err, status
        theirs = [their_control.fileno(), *(write for _, write in pipes)]
        request = ForkRequest(spec=spec, environment=environment, folder=str(Path.cwd()), path=tuple(sys.path))
        try:
            with their_control:
                pid = self.fork_onto(request, theirs)
        except (EOFError, OSError) as error:
            control.close()
            for read, _ in pipes:
                os.close(read)
            raise LaunchError(f"the fork server is gone ({error}); call kit.launch again") from error
        finally:
            for _, write in pipes:
                os.close(write)
        crash, out, err, status = (read for read, _ in pipes)
        return RankProcess(
            rank=spec.rank, pid=pid, connection=Link(control.detach()), crash=crash, out=out, err=err,
            status=Connection(status, writable=False),
        )  # fmt: skip

    def fork_onto(self, request: ForkRequest, fds: list[int]) -> int:
        """Make a rank on descriptors of the caller's, in the order of `ForkRequest`; its process id.

        Raises EOFError or OSError when the fork server is gone.
        """
        body = pickle.dumps(request)
        with self._lock:
            socket.send_fds(self._socket, [struct.pack("<I", len(body))], fds)
            self._socket.sendall(body)
            pid: int = receive_pickle(self._socket)
            return pid

    def close(self) -> None:
        """End the fork server and every rank it has made."""
        self._socket.close()
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_server: ForkServer | None = None
_server_lock = threading.Lock()


def server() -> ForkServer:
    """The fork server of this process, started when there is none; it may not be ready yet."""
    global _server
    with _server_lock:
        if _server is None or not _server.alive:
            if _server is not None:
                _server.close()
            _server = ForkServer()
        return _server


def stop() -> None:
    """End the fork server, if there is one."""
    global _server
    with _server_lock:
        if _server is not None:
            _server.close()
            _server = None


atexit.register(stop)
