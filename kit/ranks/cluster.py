"""Ranks on many machines: ipyparallel starts engines, an agent in each engine starts the rank.

The seam is `starter.py`: something that makes a rank and gives back the ends of its five streams. On one machine
(`forkserver.py`) they are inherited pipes, on a cluster (`channels.py`) sockets that the rank's machine opens to the
notebook. Guard, epochs, errors, calls, output and magics do not see the difference.

What is open on the notebook's machine, at the address `host` and nowhere else: ipyparallel's controller (encrypted
with CurveZMQ, its key travels in the engines' environment), the rank connections (both sides prove the group's
secret; not encrypted), and torch's store (no secret at all). The ranks' machines open ports of gloo or NCCL to one
another, which know no secret either. On a network that is not yours alone, close these ports to strangers (a firewall,
a private network of the cluster, a VPN).

What this engine cannot do, beside the local one:

| | local | cluster |
|---|---|---|
| start to a working group | 0.5 s when warm | seconds for ipyparallel, `import torch` on each engine, the queue |
| output of child processes | yes | yes, past ipyparallel, which would drop it |
| `/dev/stdout` opened by name in a rank | yes | no: it is a socket there |
| crash stacks, last words, exit codes | yes | yes; a lost machine is noticed after half a minute and gives none |
| environment of a replaced rank | the notebook's as it is then | the engine's, from when it was started |
| files of the notebook's folder | yes | only on a file system that the machines share |
| a place for a rank whose machine is lost | the same machine | a new job, which may have to queue |
| other people on the network | shut out | see above |
"""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kit import progress
from kit.ranks import agent
from kit.ranks.agent import Dial, Order, Place
from kit.ranks.channels import OF_A_RANK, Label, Landing, NoConnectionError
from kit.ranks.cluster_options import ClusterOptions, options_of, options_of_given_cluster
from kit.ranks.errors import LaunchError
from kit.ranks.forkserver import RankProcess
from kit.ranks.link import Link
from kit.ranks.spec import Spec, variables
from kit.ranks.starter import MAX_THREADS
from kit.ranks.zygote import receive_pickle, send_pickle

_MAIN = "import sys; sys.path[:0] = [{root!r}]; from kit.ranks.cluster_process import main; main({fd})"
_CONNECT_SECONDS = 60.0
_STOP_SECONDS = 30.0  # more than the process takes for it at worst


@dataclass(slots=True, kw_only=True)
class FarProcess(RankProcess):
    """A rank on a machine of the cluster; its streams are sockets. Closing `status` kills it, by its fork server."""

    def kill(self) -> None:
        """End the process and what it has started at once."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.status.fileno())) as status:
            status.shutdown(socket.SHUT_WR)

    def reap(self) -> int:
        """The exit code; call it when `status` is readable."""
        if self.exit_code is None:
            self.exit_code = -signal.SIGKILL
            self.how = f"its engine {self.engine} on {self.host} is gone, or that machine"
            with contextlib.suppress(OSError, struct.error):
                (self.exit_code,) = struct.unpack("<i", os.read(self.status.fileno(), 4))
                self.how = ""
        return self.exit_code


class _EngineGoneError(Exception):
    """An engine is not there any more."""


class _AnsweredEarlyError(Exception):
    """A request was answered before what it should bring about was seen."""


class Engines:
    """The engines of one group and which rank is on which. Made before the ranks, closed after them."""

    def __init__(self, options: ClusterOptions, world_size: int, *, connection: dict[str, Any] | None = None) -> None:
        self._options = options
        self._world_size = world_size
        self._connection = connection
        self._landing = Landing(options.host)
        self._link, theirs = socket.socketpair()
        code = _MAIN.format(root=str(Path(__file__).parents[2]), fd=theirs.fileno())
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C in the terminal is the notebook's
            )
        self._places: dict[int, Place] = {}
        self._lifelines: list[socket.socket] = []
        self._lives = 0
        self.engine_of: dict[int, int] = {}  # rank -> engine id, as it is now

    @property
    def host(self) -> str:
        """The address at which ranks reach the notebook."""
        return self._options.host

    @property
    def _dial(self) -> Dial:
        return Dial(address=self._landing.address, secret=self._landing.secret)

    def open(self, task: progress.Task) -> None:
        """Start the engines, or connect to those of the given cluster, and wait for them. Raises `LaunchError`."""
        self._ask("open", self._options, self._world_size, self._connection, self._dial)
        import torch.distributed  # noqa: F401  # imported here while the cluster starts

        try:
            self._take_in(self._answer(task))
        except _EngineGoneError as error:
            raise LaunchError(f"{error}. Expected {self._world_size} engines that take work.") from error
        self.engine_of = dict(enumerate(_in_order(self._places)))

    def start(self, spec: Spec) -> FarProcess:
        """Start a rank on its engine, on a new one when that is gone. Raises `LaunchError`."""
        try:
            return self._start_on(self.engine_of[spec.rank], spec)
        except _EngineGoneError:
            self._ask("add", tuple(self.engine_of.values()))
            try:
                added = self._answer()
                self._take_in(added)
                (self.engine_of[spec.rank],) = added
                return self._start_on(self.engine_of[spec.rank], spec)
            except _EngineGoneError as error:
                raise LaunchError(f"{error}. Try ranks.replace({spec.rank}) again.") from error

    def close(self) -> None:
        """Stop the cluster, unless it is the person's own."""
        self._link.close()
        for line in self._lifelines:
            line.close()
        self._landing.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _take_in(self, places: dict[int, Place]) -> None:
        """Note where engines are; those of a cluster of ours hold a connection and end with it."""
        self._places |= places
        for engine, place in places.items():
            if place.python != sys.version_info[:2]:
                raise LaunchError(
                    f"engine {engine} on {place.host} runs Python {'.'.join(map(str, place.python))}, the notebook "
                    f"{'.'.join(map(str, sys.version_info[:2]))}; expected the same, since functions are sent as code"
                )
        if self._connection is None:
            labels = [Label(number=engine, life=0, channel="life") for engine in places]
            self._lifelines += self._landing.accept(labels, seconds=_CONNECT_SECONDS).values()

    def _start_on(self, engine: int, spec: Spec) -> FarProcess:
        self._lives += 1
        local = self._placed(spec)
        order = Order(
            spec=local,
            environment=variables(local, interface=self._options.interface),
            folder=str(Path.cwd()),
            path=tuple(sys.path),
            dial=self._dial,
            life=self._lives,
        )
        self._ask("run", engine, agent.start, (order,))
        labels = [Label(number=spec.rank, life=self._lives, channel=channel) for channel in OF_A_RANK]
        try:
            found = self._landing.accept(labels, seconds=_CONNECT_SECONDS, still=self._fail_early)
        except NoConnectionError as error:
            raise LaunchError(
                f"engine {engine} on {self._places[engine].host} did not reach the notebook: {error}. Expected "
                "connections to that address; give another with host=..., or open it in the firewall."
            ) from error
        except _AnsweredEarlyError:
            self._answer()  # says why
            raise LaunchError(f"engine {engine} started rank {spec.rank} without connections") from None
        pid = self._answer()
        ends = {label.channel: connection for label, connection in found.items()}
        return FarProcess(
            rank=spec.rank, pid=pid, connection=Link(ends["control"].detach()),
            status=Connection(ends["status"].detach(), writable=False), crash=ends["crash"].detach(),
            out=ends["out"].detach(), err=ends["err"].detach(), host=self._places[engine].host, engine=engine,
        )  # fmt: skip

    def _placed(self, spec: Spec) -> Spec:
        """The spec with threads, and the number among the ranks that share its machine and see the same GPUs."""
        places = {rank: self._places[engine] for rank, engine in self.engine_of.items()}
        here = places[spec.rank]
        beside = [
            r for r, place in places.items() if (place.host, place.visible_gpus) == (here.host, here.visible_gpus)
        ]
        sharing = sum((place.host, place.cores) == (here.host, here.cores) for place in places.values())
        return replace(
            spec,
            local_rank=beside.index(spec.rank),
            local_world_size=len(beside),
            threads=spec.threads or max(1, min(MAX_THREADS, len(here.cores) // sharing)),
        )

    def _ask(self, verb: str, *arguments: Any) -> None:
        try:
            send_pickle(self._link, (verb, arguments))
        except OSError as error:
            raise LaunchError(f"the process that holds the cluster is gone ({error}); call kit.launch again") from error

    def _answer(self, task: progress.Task | None = None) -> Any:
        """The answer to the last request. Raises `LaunchError`, and `_EngineGoneError`."""
        said = ""
        while True:
            try:
                kind, value = receive_pickle(self._link)
            except (EOFError, OSError) as error:
                last = f", after it had said: {said}" if said else ""
                raise LaunchError(
                    f"the process that holds the cluster ended ({error}){last}; call kit.launch again"
                ) from error
            if kind == "done":
                return value
            if kind == "gone":
                raise _EngineGoneError(value)
            if kind == "failed":
                raise LaunchError(value)
            if task is not None and value != said:
                task.advance(value, by=0)
            said = value

    def _fail_early(self) -> None:
        if select.select([self._link], [], [], 0)[0]:
            raise _AnsweredEarlyError


def connection_of(cluster: Any) -> dict[str, Any]:
    """How to reach the controller of a person's own Cluster. Raises `LaunchError` when it does not run."""
    if getattr(cluster, "controller", None) is None:
        raise LaunchError(
            "the given ipyparallel Cluster is not running; expected one with a controller and an engine for each "
            "rank. Call cluster.start_cluster_sync(n=2) first."
        )
    connection: dict[str, Any] = json.loads(Path(cluster.controller.connection_files["client"]).read_text())
    return connection


def _in_order(places: dict[int, Place]) -> list[int]:
    """Engine ids in the order of their ranks: by task where Slurm or MPI numbers them, else machine by machine."""
    tasks = [place.task for place in places.values()]
    if min(tasks) >= 0 and len(set(tasks)) == len(tasks):
        return sorted(places, key=lambda engine: places[engine].task)
    hosts = list(dict.fromkeys(place.host for place in places.values()))
    return sorted(places, key=lambda engine: (hosts.index(places[engine].host), engine))


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ValueError:  # forbidden, with None in sys.modules
        return False


def starter_of(engine: Any, given: dict[str, Any], world_size: int) -> Callable[[], Engines]:
    """What starts the engines of a group, its options checked. Raises TypeError, ValueError and `LaunchError`."""
    if not isinstance(engine, str) and not type(engine).__module__.startswith("ipyparallel"):
        raise TypeError(f"engine is {engine!r}; expected the name of one, as in 'slurm', or an ipyparallel Cluster")
    options = (
        options_of(engine, given, world_size=world_size) if isinstance(engine, str) else options_of_given_cluster(given)
    )
    if not _is_installed("ipyparallel"):
        raise LaunchError(
            f"engine {options.engine!r} needs ipyparallel, which is not installed; expected the kit with its extra "
            "`cluster`. Run `pip install 'static-graph-kit[cluster]'`."
        )
    connection = None if isinstance(engine, str) else connection_of(engine)
    return lambda: Engines(options, world_size, connection=connection)
