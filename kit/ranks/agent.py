"""What runs inside an ipyparallel engine: it starts ranks on its machine and is out of the way afterwards.

An engine is not a rank. It has a fork server (`forkserver.py`), which makes the rank as a process of its own with
connections straight to the notebook. So a rank that dies takes no engine along, another is made in its place in a
fraction of a second, and what child processes of a rank write is not lost. The fork server ends with the engine, and
kills a rank at once when the notebook's end of its connection closes.
"""

import contextlib
import os
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from kit.ranks import forkserver
from kit.ranks.channels import OF_A_RANK, Label, connect
from kit.ranks.spec import Spec
from kit.ranks.zygote import ForkRequest

_TASK_NAMES = ("SLURM_PROCID", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_SECRET_NAMES = ("IPP_CONNECTION_INFO",)  # of the engine; ranks have no use for the key to the cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an engine runs: host name, Python, cores it may use, the GPUs it is shown ("" when all).

    `task` is the number that Slurm or MPI has given it, -1 when nobody has.
    """

    host: str
    python: tuple[int, int]
    cores: tuple[int, ...]
    visible_gpus: str
    task: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dial:
    """Where the notebook listens for the connections of this group, and the secret it asks for."""

    address: tuple[str, int]
    secret: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A rank to start: `environment` adds to the engine's own, `path` are the notebook's folders of modules.

    `life` tells this process of the rank from earlier ones.
    """

    spec: Spec
    environment: dict[str, str]
    folder: str
    path: tuple[str, ...]
    dial: Dial
    life: int


def prepare() -> Place:
    """Start the fork server and wait until it has imported torch. Raises `LaunchError`."""
    forkserver.server().wait_ready()
    return Place(
        host=socket.gethostname(),
        python=sys.version_info[:2],
        cores=tuple(sorted(os.sched_getaffinity(0))),
        visible_gpus=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        task=int(next((os.environ[name] for name in _TASK_NAMES if name in os.environ), -1)),
    )


def live_with(dial: Dial, number: int) -> None:
    """End this engine when the notebook is gone, even if nobody is left who would stop the cluster."""
    line = connect(dial.address, dial.secret, Label(number=number, life=0, channel="life"))

    def watch() -> None:
        with contextlib.suppress(OSError):
            line.recv(1)
        try:
            forkserver.stop()
        finally:
            os._exit(0)

    threading.Thread(target=watch, name="kit-life", daemon=True).start()


def start(order: Order) -> int:
    """Start a rank; its process id. Raises OSError when the notebook cannot be reached, and `LaunchError`."""
    server = forkserver.server()
    server.wait_ready()
    environment = {name: value for name, value in os.environ.items() if name not in _SECRET_NAMES}
    request = ForkRequest(
        spec=order.spec,
        environment={**environment, **order.environment},
        folder=order.folder,
        path=_path(order.path),
    )
    with contextlib.ExitStack() as ends:
        rank = order.spec.rank
        sockets = [
            ends.enter_context(
                connect(order.dial.address, order.dial.secret, Label(number=rank, life=order.life, channel=channel))
            )
            for channel in OF_A_RANK
        ]
        return server.fork_onto(request, [each.fileno() for each in sockets])


def _path(notebooks: tuple[str, ...]) -> tuple[str, ...]:
    """The notebook's module folders that exist here too, then the engine's own."""
    there = [folder for folder in notebooks if not folder or Path(folder).exists()]
    return (*there, *(folder for folder in sys.path if folder not in there))
