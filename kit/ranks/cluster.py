"""Ranks on many machines: ipyparallel starts engines, an agent in each engine starts the rank.

The seam between the two engines of this room is `GroupState.spawn_process`: something that makes a rank and
gives back the ends of its five streams. Here (`forkserver.py`) they are pipes, on a cluster (`channels.py`) sockets
that the rank's machine opens to the notebook. Guard, epochs, errors, calls, output and magics do not see the difference.

What is open on the notebook's machine, at the address `host` and nowhere else: ipyparallel's controller (encrypted
with CurveZMQ, its key travels in the engines' environment), the rank connections (both sides prove the group's
secret; not encrypted), and torch's store (no secret at all). The ranks' machines open ports of gloo or NCCL to one
another, which know no secret either. On a network that is not yours alone, close these ports to strangers (a firewall,
a private network of the cluster, a VPN).

What this engine cannot do, beside the local one:

| | local | cluster |
|---|---|---|
| start to a working group | half a second when warm | seconds for ipyparallel, then `import torch` on each engine; a queue takes what it takes |
| output of child processes | yes | yes: it does not go through ipyparallel, which would drop it |
| `/dev/stdout` opened by name in a rank | yes | no: it is a socket there |
| crash stacks, last words, exit codes | yes | yes; a lost machine is noticed after half a minute and gives none |
| environment of a replaced rank | the notebook's as it is then | the engine's, from when it was started |
| files of the notebook's folder | yes | only on a file system that the machines share |
| memory of a rank in `%ranks` | yes | only when it runs on the notebook's machine |
| other people on the network | shut out | see above |
"""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kit import progress
from kit.ranks import agent
from kit.ranks.agent import Dial, Order, Place
from kit.ranks.channels import OF_A_RANK, Label, Landing, NoConnectionError
from kit.ranks.cluster_options import ClusterOptions
from kit.ranks.errors import LaunchError
from kit.ranks.forkserver import RankProcess
from kit.ranks.spec import Spec
from kit.ranks.zygote import receive_pickle, send_pickle

MAX_THREADS = 8
_MAIN = "import sys; sys.path[:0] = [{root!r}]; from kit.ranks.cluster_process import main; main({fd})"
_CONNECT_SECONDS = 60.0
_STOP_SECONDS = 20.0


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
            code = RankProcess.reap(self)
            if self.told is False:
                self.how = f"its engine {self.engine} on {self.host}, or that machine, is gone"
            return code
        return self.exit_code


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

        self._places = self._answer(task, lifelines=self._connection is None)
        self.engine_of = dict(enumerate(_by_host(self._places)))

    def start(self, spec: Spec) -> FarProcess:
        """Start a rank on its engine, on a new one when that is gone. Raises `LaunchError`."""
        engine = self.engine_of[spec.rank]
        try:
            return self._start_on(engine, spec)
        except _EngineGoneError:
            used = tuple(self.engine_of.values())
            self._ask("add", used)
            added = self._answer(lifelines=self._connection is None)
            self._places |= added
            (self.engine_of[spec.rank],) = added
            return self._start_on(self.engine_of[spec.rank], spec)

    def _start_on(self, engine: int, spec: Spec) -> FarProcess:
        self._lives += 1
        local = replace(spec, **self._local_numbers(spec.rank))
        order = Order(
            spec=local,
            environment=self._environment(local),
            folder=str(Path.cwd()),
            path=tuple(sys.path),
            dial=self._dial,
            life=self._lives,
        )
        self._ask("run", engine, agent.start, (order,))
        labels = [Label(number=spec.rank, life=self._lives, channel=channel) for channel in OF_A_RANK]
        try:
            ends = self._landing.accept(labels, seconds=_CONNECT_SECONDS, still=self._fail_early)
        except NoConnectionError as error:
            raise LaunchError(
                f"engine {engine} on {self._places[engine].host} did not reach the notebook: {error}. Expected "
                "connections to that address; give another with host=..., or open it in the firewall."
            ) from error
        except _AnsweredEarlyError:
            self._answer()  # says why
            raise LaunchError(f"engine {engine} started rank {spec.rank} without connections") from None
        pid = self._answer()
        return FarProcess(
            rank=spec.rank, pid=pid, connection=Connection(ends["control"].detach()),
            status=Connection(ends["status"].detach(), writable=False), crash=ends["crash"].detach(),
            out=ends["out"].detach(), err=ends["err"].detach(), host=self._places[engine].host, engine=engine,
        )  # fmt: skip
