"""What `launch(..., engine=...)` takes for each kind of cluster, checked before anything is started."""

import socket
from dataclasses import dataclass, fields
from typing import Any

from kit.ranks.errors import LaunchError

LOOPBACK = "127.0.0.1"
_COMMON = ("host", "interface", "folder", "start_seconds")
_OPTIONS = {
    "ipyparallel": _COMMON,
    "mpi": (*_COMMON, "mpi_command", "mpi_args"),
    "slurm": (*_COMMON, "partition", "account", "qos", "time_limit", "sbatch"),
    "ssh": (*_COMMON, "hosts", "ssh_args", "remote_python"),
}
ENGINES = tuple(_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """How to start engines and where the notebook can be reached.

    `host`: the address of this machine that the ranks reach; the notebook, the store and ipyparallel's controller
    listen there and nowhere else. `interface`: the network interface of gloo and NCCL, as in "eth0". `folder`: where
    files of the cluster go meanwhile; on several machines one that all of them see. `start_seconds`: how long to
    wait for the engines, queueing included; None waits for ever.
    Slurm: `partition`, `account`, `qos`, `time_limit` and further `sbatch` options as in `("--gres=gpu:2",)`.
    SSH: `hosts` with the number of ranks for each, as in `{"node1": 2, "me@node2:2222": 2}`, `ssh_args`
    (for scp too) and the Python there, by default this one. MPI: the command and its arguments.
    """

    engine: str
    host: str
    interface: str = ""
    folder: str = ""
    start_seconds: float | None = 120.0
    partition: str = ""
    account: str = ""
    qos: str = ""
    time_limit: str = ""
    sbatch: tuple[str, ...] = ()
    hosts: tuple[tuple[str, int], ...] = ()
    ssh_args: tuple[str, ...] = ()
    remote_python: str = ""
    mpi_command: str = "mpiexec"
    mpi_args: tuple[str, ...] = ()


def options_of(engine: str, given: dict[str, Any], *, world_size: int) -> ClusterOptions:
    """Checked options of a kind of engine. Raises TypeError, ValueError and `LaunchError`."""
    if engine not in _OPTIONS:
        raise ValueError(
            f"engine is {engine!r}; expected 'local', one of {', '.join(map(repr, ENGINES))}, or an ipyparallel Cluster"
        )
    refuse_unknown(engine, given, _OPTIONS[engine])
    known = dict(given)
    host = known.pop("host", None) or (LOOPBACK if engine == "ipyparallel" else _own_address(engine))
    for name in ("sbatch", "ssh_args", "mpi_args"):
        if name in known:
            if isinstance(known[name], str):
                raise TypeError(f"{name} is {known[name]!r}; expected a list with one option each, as in ['--verbose']")
            known[name] = tuple(known[name])
    if engine == "ssh":
        known["hosts"] = _hosts(known.get("hosts"), world_size)
    if engine == "slurm":
        known.setdefault("start_seconds", None)  # a job may queue for hours; Ctrl-C gives up and cancels it
    if "folder" in known:
        known["folder"] = str(known["folder"])
    known.setdefault("interface", "lo" if host.startswith("127.") else "")
    return ClusterOptions(engine=engine, host=host, **known)


def options_of_given_cluster(given: dict[str, Any]) -> ClusterOptions:
    """Checked options for a Cluster of the person's own. Raises TypeError."""
    refuse_unknown("a Cluster", given, ("host", "interface", "start_seconds"))
    host = given.get("host") or LOOPBACK
    rest = {name: value for name, value in given.items() if name != "host"}
    rest.setdefault("interface", "lo" if host.startswith("127.") else "")
    return ClusterOptions(engine="cluster", host=host, **rest)


def refuse_unknown(engine: str, given: dict[str, Any], known: tuple[str, ...]) -> None:
    """Raise TypeError for an option that this engine has not."""
    unknown = [name for name in given if name not in known]
    if not unknown:
        return
    of_others = {field.name for field in fields(ClusterOptions)} - {"engine"}
    why = "is an option of another engine" if unknown[0] in of_others else "is unknown"
    takes = f"it takes {', '.join(known)}" if known else "it takes no options"
    raise TypeError(f"{unknown[0]!r} {why}; expected an option of engine {engine!r}: {takes}")


def _hosts(given: Any, world_size: int) -> tuple[tuple[str, int], ...]:
    if not given:
        raise ValueError("engine 'ssh' has no hosts; expected hosts={'node1': 2, 'me@node2': 2}, ranks for each host")
    hosts = tuple((str(host), int(ranks)) for host, ranks in dict(given).items())
    total = sum(ranks for _, ranks in hosts)
    if total != world_size:
        raise ValueError(
            f"hosts have {total} rank{'' if total == 1 else 's'} in all; expected {world_size}, as many as launch is "
            "asked for"
        )
    return hosts


def _own_address(engine: str) -> str:
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = LOOPBACK
    if address.startswith("127."):
        raise LaunchError(
            f"the name of this machine, {socket.gethostname()}, leads to {address}, which the machines of a cluster "
            f"cannot reach; expected an address of its network. Give it: kit.launch(..., engine={engine!r}, "
            "host='10.0.0.5')."
        )
    return address
