"""The fork server's own process: it has imported torch and makes ranks by forking.

Not `multiprocessing`'s: that one imports the user's main script into every rank, is shared with data loaders
that want no torch, leaves a socket file behind when the notebook is killed, and cannot end its children then.
Here there is no file and no listening socket: requests come over an inherited pair of sockets. When the controller
is gone the zygote kills every rank's process group, reaps them and ends; should the zygote itself be killed,
the kernel kills the ranks (PR_SET_PDEATHSIG).
"""

import contextlib
import ctypes
import fcntl
import os
import pickle
import select
import selectors
import signal
import socket
import stat
import struct
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    """A rank to make: `spec` for its worker, surroundings of the controller. Descriptors follow in this order:
    control, crash, stdout, stderr, status."""  # fmt: skip

    spec: Any
    environment: dict[str, str]
    folder: str
    path: tuple[str, ...]


def main(fd: int, controller: int) -> None:
    """Serve fork requests that come over socket `fd` until process `controller` is gone."""
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=fd) as requests:
        try:
            with _killed_without(requests):
                import kit.ranks.worker  # noqa: F401  # every rank starts with it; brings torch
        except BaseException:
            send_pickle(requests, traceback.format_exc())
            return
        send_pickle(requests, None)
        _Zygote(requests, controller).serve()


@contextmanager
def _killed_without(requests: socket.socket) -> Iterator[None]:
    """Within the block the kernel ends this process at once when the controller's end of the socket closes.

    Importing torch takes seconds, in which no thread of Python would get to look: libraries are loaded with its lock
    held. SIGIO, whose default is to end a process, needs no Python. Nothing else comes over the socket meanwhile.
    """
    flags = fcntl.fcntl(requests, fcntl.F_GETFL)
    try:
        with contextlib.suppress(OSError):  # a sandbox without: it is seen after the import
            fcntl.fcntl(requests, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(requests, fcntl.F_SETFL, flags | os.O_ASYNC)
        gone = select.poll()
        gone.register(requests, select.POLLRDHUP)
        if gone.poll(0):  # it was closed before
            os._exit(1)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.fcntl(requests, fcntl.F_SETFL, flags)


def send_pickle(to: socket.socket, value: Any) -> None:
    """Write one value; `receive_pickle` reads it."""
    body = pickle.dumps(value)
    to.sendall(struct.pack("<I", len(body)) + body)


def receive_pickle(source: socket.socket) -> Any:
    """Read one value. Raises EOFError when the other side is gone."""
    (length,) = struct.unpack("<I", receive_exactly(source, 4))
    return pickle.loads(receive_exactly(source, length))


def receive_exactly(source: socket.socket, count: int) -> bytes:
    """Read `count` bytes. Raises EOFError when the other side is gone."""
    parts: list[bytes] = []
    while count:
        part = source.recv(count)
        if not part:
            raise EOFError("the other side of the fork server's socket is gone")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


class _Zygote:
    def __init__(self, requests: socket.socket, controller: int) -> None:
        self._requests = requests
        self._status: dict[int, int] = {}  # pid -> descriptor that learns how the rank ended
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._controller: int | None = None
        with contextlib.suppress(OSError):  # a kernel or sandbox without pidfd: the socket's end says the same
            self._controller = os.pidfd_open(controller)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def serve(self) -> None:
        with self._selector as selector:
            selector.register(self._requests, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            if self._controller is not None:
                selector.register(self._controller, selectors.EVENT_READ)
            while True:
                events = selector.select()
                ready = {key.fileobj for key, _ in events}
                if self._woken in ready:
                    with contextlib.suppress(BlockingIOError):
                        self._woken.recv(4096)
                    self._reap()
                for pid in (key.data for key, _ in events if key.data is not None):
                    self._end(pid)
                if self._controller in ready:
                    break
                if self._requests in ready:
                    try:
                        self._fork()
                    except (EOFError, OSError):
                        break
        self._end_all()

    def _fork(self) -> None:
        fds: list[int] = []
        head, fds, _, _ = socket.recv_fds(self._requests, 4, 5)
        if not head:
            raise EOFError
        head += receive_exactly(self._requests, 4 - len(head)) if len(head) < 4 else b""
        request: ForkRequest = pickle.loads(receive_exactly(self._requests, struct.unpack("<I", head)[0]))
        control, crash, out, err, status = fds
        pid = os.fork()
        if pid == 0:
            try:
                for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
                    os.dup2(source, target)
                    os.close(source)
                self._leave_zygote(status)
                _become_rank(request, control=control, crash=crash)
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(1)
        for fd in (control, crash, out, err):
            os.close(fd)
        self._status[pid] = status
        if stat.S_ISSOCK(os.fstat(status).st_mode):  # of a rank of a cluster: its other end closes to end the rank
            self._selector.register(status, selectors.EVENT_READ, data=pid)
        send_pickle(self._requests, pid)

    def _leave_zygote(self, status: int) -> None:
        """In the child: give up what is the zygote's; die with it."""
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent != os.getppid():
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for own in (self._requests, self._wake, self._woken):
            own.close()
        for fd in (status, *self._status.values(), *([self._controller] if self._controller is not None else [])):
            os.close(fd)

    def _reap(self) -> None:
        """Tell how ranks ended, and end what they have left running."""
        while self._status:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            pid = ended.si_pid
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            fd = self._status.pop(pid)
            self._forget(fd)
            with contextlib.suppress(OSError):  # the controller is gone
                os.write(fd, struct.pack("<i", os.waitstatus_to_exitcode(status)))
            os.close(fd)

    def _end(self, pid: int) -> None:
        """Kill a rank and what it has started; it is reaped later."""
        if pid not in self._status:  # reaped in this very round
            return
        self._forget(self._status[pid])
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # the group may not exist yet

    def _forget(self, status: int) -> None:
        with contextlib.suppress(KeyError):  # a pipe was never watched
            self._selector.unregister(status)

    def _end_all(self) -> None:
        for pid in list(self._status):
            self._end(pid)
        for pid, fd in self._status.items():
            os.waitpid(pid, 0)
            os.close(fd)


def _become_rank(request: ForkRequest, *, control: int, crash: int) -> None:
    os.environ.clear()
    os.environ.update(request.environment)
    with contextlib.suppress(OSError):  # the folder may be gone; imports say so better than a dead rank
        os.chdir(request.folder)
    sys.path[:] = request.path
    from kit.ranks import worker

    worker.main(request.spec, control=control, crash=crash)
