"""The process beside the notebook that holds the ipyparallel cluster of a group.

ipyparallel runs here and not in the notebook, for three reasons: its event loop does not meet the notebook's, the
notebook imports nothing of it, and the cluster is stopped on one way only, however the notebook ends: this process
reads the end of its socket, stops engines and controller (a Slurm job is cancelled), and removes its folder.
"""

import contextlib
import logging
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from kit.ranks import agent
from kit.ranks.agent import Dial, Place
from kit.ranks.cluster_launchers import LAUNCH_LOG, Jobs, cluster_config, engine_launcher, make_folder
from kit.ranks.cluster_options import ClusterOptions
from kit.ranks.zygote import receive_pickle, send_pickle

# An engine uses the notebook's own copy of the kit where it sees it, so that both speak the same.
_BOOTSTRAP = "import os, sys\nif os.path.isdir({root!r} + '/kit'): sys.path.insert(0, {root!r})"
_LOOK_SECONDS = 0.1
_BEGIN_SECONDS = 30.0
_ENGINE_SECONDS = 60.0  # importing torch takes 8 to 20 s on loaded cores; asked twice, since an answer can be lost
_NEWS_SECONDS = 15.0  # without news of an engine although its job runs: they may have been lost
_GRACE_SECONDS = 0.5  # what is left then are nannies of engines, which take seconds to see that those are gone
_STOP_SECONDS = 8.0
_END_SECONDS = 10.0


class _NotebookGoneError(Exception):
    """The notebook closed its socket."""


class EngineGoneError(Exception):
    """An engine is not there any more."""


class ClusterError(Exception):
    """The cluster cannot do what was asked; its text is for the person."""


def main(fd: int) -> None:
    """Serve one group's notebook over socket `fd` until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with socket.socket(fileno=fd) as link:
        _Keeper(link).serve()


class _Keeper:
    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._options: ClusterOptions | None = None
        self._cluster: Any = None
        self._client: Any = None
        self._connect: Callable[[], Any] = lambda: None
        self._folder = ""
        self._said = ""
        self._jobs: Jobs | None = None
        self._dial: Dial | None = None
        self._verbs: dict[str, Callable[..., Any]] = {"open": self.open, "run": self.run, "add": self.add}

    def serve(self) -> None:
        """Answer requests, each `(verb, arguments)`, with `("done" | "gone" | "failed", value or text)`."""
        try:
            while True:
                verb, arguments = receive_pickle(self._link)
                send_pickle(self._link, self._answer(verb, arguments))
        except (EOFError, OSError, _NotebookGoneError):
            pass
        finally:
            self._stop()

    def _answer(self, verb: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
        try:
            return "done", self._verbs[verb](*arguments)
        except EngineGoneError as error:
            return "gone", str(error)
        except ClusterError as error:
            return "failed", str(error)
        except _NotebookGoneError:
            raise
        except Exception as error:  # whatever a launcher of ipyparallel raises
            return "failed", f"{type(error).__name__}: {error}{self._log_tail()}"

    # ---- what is asked --------------------------------------------------------------------------------------

    def open(self, options: ClusterOptions, n: int, connection: dict[str, Any] | None, dial: Dial) -> dict[int, Place]:
        """Start a cluster with `n` engines, or connect to the one of `connection`; the engines by id."""
        ipyparallel = import_module("ipyparallel")
        self._options, self._dial = options, dial
        if connection is not None:
            self._connect = lambda: ipyparallel.Client(connection)
        else:
            self._say("starting ipyparallel's controller")
            self._start_cluster(ipyparallel, options, n)
        self._client = self._connect()
        self._await_engines(n)
        try:
            return self._prepare(sorted(self._client.ids)[:n])
        except EngineGoneError:  # an answer was lost (seen once in 300 groups): once more over a new connection
            self._client.close()
            self._client = self._connect()
            self._await_engines(n)
            return self._prepare(sorted(self._client.ids)[:n])

    def run(self, engine: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """`function(*arguments)` in an engine. Raises `EngineGoneError` when it is not there any more."""
        if engine not in self._client.ids:
            raise EngineGoneError(f"engine {engine} has ended")
        return self._result(engine, self._client[engine].apply_async(function, *arguments), _ENGINE_SECONDS)

    def add(self, used: tuple[int, ...]) -> dict[int, Place]:
        """One more engine than those in use, by its id."""
        free = [engine for engine in self._client.ids if engine not in used]
        if not free and self._cluster is None:
            raise ClusterError(
                "the given ipyparallel Cluster has no free engine; expected one more for the rank. "
                "Call cluster.start_engines_sync(1) and try again."
            )
        if not free:
            known = set(self._client.ids)
            self._cluster.start_engines_sync(1)
            self._await_engines(len(known) + 1)
            free = [engine for engine in self._client.ids if engine not in used]
        return self._prepare(free[:1])

    # ---- how ------------------------------------------------------------------------------------------------

    def _start_cluster(self, ipyparallel: Any, options: ClusterOptions, n: int) -> None:
        self._folder = make_folder(options)
        os.environ["IPYTHONDIR"] = self._folder
        os.chdir(self._folder)
        with open(LAUNCH_LOG, "ab") as log:  # noqa: PTH123  # what sbatch, ssh and mpiexec complain of
            os.dup2(log.fileno(), 2)
        self._cluster = ipyparallel.Cluster(
            engines=engine_launcher(options),
            n=n,
            cluster_id="kit",
            profile_dir=self._folder,
            controller_ip=options.host,
            controller_args=_curve_arguments(),
            config=cluster_config(options),
            delay=0.0,
            load_profile=False,
            shutdown_atexit=False,
            log_level=logging.CRITICAL,
        )
        self._jobs = Jobs(self._cluster)
        self._cluster.start_controller_sync()
        self._look()
        self._say("starting engines")
        self._cluster.start_engines_sync(n)
        self._connect = self._cluster.connect_client_sync

    def _await_engines(self, n: int) -> None:
        """Wait until `n` engines have registered; a job may queue for long."""
        limit = self._options.start_seconds if self._options is not None else None
        deadline = None if limit is None else time.monotonic() + limit
        ask_again = time.monotonic() + _NEWS_SECONDS
        while len(self._client.ids) < n:
            self._look()
            trouble = self._jobs.trouble() if self._jobs is not None else ""
            if trouble:
                raise ClusterError(f"{trouble}{self._log_tail()}")
            if deadline is not None and time.monotonic() > deadline:
                raise ClusterError(
                    f"{len(self._client.ids)} of {n} engines came within {limit:g} s; expected all. Give more time "
                    f"with start_seconds=..., or look at the queue.{self._log_tail()}"
                )
            waiting = self._jobs.waiting() if self._jobs is not None else ""
            if time.monotonic() > ask_again:
                ask_again = time.monotonic() + _NEWS_SECONDS
                if "PENDING" not in waiting:  # an engine that registers while a client subscribes is told to nobody
                    self._client.close()
                    self._client = self._connect()
            self._say(f"{len(self._client.ids)} of {n} engines are up{waiting}")

    def _prepare(self, engines: list[int]) -> dict[int, Place]:
        """Have engines import torch; where each is."""
        bootstrap = _BOOTSTRAP.format(root=str(Path(__file__).parents[2]))
        begun = {engine: self._client[engine].execute(bootstrap, block=False) for engine in engines}
        for engine, answer in begun.items():
            self._result(engine, answer, _BEGIN_SECONDS)
        asked = {engine: self._client[engine].apply_async(agent.prepare) for engine in engines}
        self._say("engines import torch")
        places = {engine: self._result(engine, answer, _ENGINE_SECONDS) for engine, answer in asked.items()}
        if self._cluster is not None:
            for engine in engines:
                self._client[engine].apply_async(agent.live_with, self._dial, engine)
        return places

    def _result(self, engine: int, answer: Any, seconds: float) -> Any:
        errors: Any = import_module("ipyparallel.error")
        deadline = time.monotonic() + seconds
        while not answer.wait(_LOOK_SECONDS):
            self._look(seconds=0.0)
            if time.monotonic() > deadline:
                raise EngineGoneError(f"engine {engine} did not answer within {seconds:g} s: is it busy, or stopped?")
        try:
            return answer.get()
        except errors.EngineError as error:
            raise EngineGoneError(f"engine {engine} has ended") from error
        except errors.RemoteError as error:
            raise ClusterError(f"engine {engine}: {error.ename}: {error.evalue}") from error

    def _look(self, *, seconds: float = _LOOK_SECONDS) -> None:
        """Wait a little. Raises when the notebook is gone: it sends nothing while it waits for an answer."""
        if select.select([self._link], [], [], seconds)[0] and not self._link.recv(1, socket.MSG_PEEK):
            raise _NotebookGoneError

    def _say(self, text: str) -> None:
        if text == self._said:
            return
        self._said = text
        send_pickle(self._link, ("said", text))

    def _log_tail(self) -> str:
        return self._jobs.log_tail() if self._jobs is not None else ""

    def _stop(self) -> None:
        """Stop what was started here; a cluster of the person's own goes on."""
        if self._client is not None:
            with contextlib.suppress(Exception):  # a broken connection is what there is to close
                self._client.close()
        if self._cluster is None:
            return
        psutil: Any = import_module("psutil")  # comes with ipyparallel
        processes = psutil.Process().children(recursive=True)
        if self._jobs is not None:
            self._jobs.cancel()
        with contextlib.suppress(Exception), _limit(_STOP_SECONDS):  # engines that have ended already, a mute queue
            self._cluster.stop_cluster_sync()
        _, left = psutil.wait_procs(processes, timeout=_GRACE_SECONDS)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if self._jobs is not None:
            self._jobs.await_end(_END_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block when it takes longer; for the main thread only."""

    def over(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _curve_arguments() -> list[str]:
    """Arguments that have ipyparallel encrypt and authenticate its connections, where its ZeroMQ can."""
    import zmq

    return ["--IPController.enable_curve=True"] if zmq.has("curve") else []
