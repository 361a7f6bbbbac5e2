"""Start a group of ranks on this machine, and know which group is open.

Ranks are forked from a process that has imported torch already (`forkserver.py`), join one process group over the
loopback address, and end with this process, however it ends.
"""

import sys
import weakref
from collections.abc import Callable
from typing import Any

from kit import progress
from kit.ranks import forkserver
from kit.ranks.calls import Calls
from kit.ranks.cluster_options import refuse_unknown
from kit.ranks.errors import Failure, LaunchError, RankError
from kit.ranks.group import Ranks
from kit.ranks.inside import in_kit_rank
from kit.ranks.output import Sink, write_labelled
from kit.ranks.spec import Spec
from kit.ranks.starter import LocalStarter, Starter
from kit.ranks.state import GroupState

_BACKENDS = ("gloo", "nccl")
_DEVICES = ("cpu", "cuda")

_latest: Ranks | None = None
_started: list["weakref.ref[Ranks]"] = []  # the latest last


def launch(
    world_size: int,
    *,
    backend: str = "gloo",
    device: str = "cpu",
    threads: int | None = None,
    timeout: float | None = None,
    output: Sink = write_labelled,
    check_collectives: bool | None = None,
    engine: Any = "local",
    **engine_options: Any,
) -> Ranks:
    """Start `world_size` ranks with a process group between them, on this machine or on a cluster.

    `backend`: "gloo" (CPU, or GPUs that ranks may share) or "nccl" (one GPU for each rank; `device` is then
    "cuda"). `threads` of each rank; by default the cores shared out, 1 to 8. `timeout` in seconds for every call
    without its own; None waits for ever. `output` is called as `output(rank, stream, line)` in the thread that
    waits for a call; by default lines are written with the rank in front. `check_collectives`: waiting collectives
    that the user's own code calls by name are compared between the ranks first, so that unequal shapes are an
    error on all of them; costs about 1 ms each (measured: 2 ranks on 2 loaded cores). None: with gloo only.

    `engine`: "local", or for many machines "slurm", "ssh", "mpi", "ipyparallel" (this machine, through ipyparallel)
    or a running `ipyparallel.Cluster`; `engine_options` are those of `kit.ranks.cluster_options`. What is open to the
    network then, and what a cluster cannot do, is told in `kit.ranks.cluster`.

    Takes about as long as `import torch` the first time, then about half a second (measured on 2 cores).
    Raises `LaunchError`, and ValueError for arguments.
    """
    global _latest
    device = _check(world_size, backend, device, threads)
    spec = Spec(
        rank=0,
        world_size=world_size,
        backend=backend,
        device=device,
        threads=threads or 0,
        host="",
        port=0,
        epoch=0,
        check_collectives=backend == "gloo" if check_collectives is None else check_collectives,
        local_rank=0,
        local_world_size=world_size,
    )
    choose = _starter(engine, engine_options, world_size)
    with progress.task(f"starting {world_size} rank{'s' if world_size > 1 else ''}", total=3) as task:
        _latest = _start(choose(), spec, task, timeout=timeout, output=output)
    _started.append(weakref.ref(_latest))
    return _latest


def _starter(engine: Any, options: dict[str, Any], world_size: int) -> Callable[[], Starter]:
    """What makes the starter of an engine; the options are checked here, before anything is begun."""
    if engine == "local":
        refuse_unknown("local", options, ())
        return LocalStarter
    from kit.ranks import cluster

    return cluster.starter_of(engine, options, world_size)


def _start(starter: Starter, spec: Spec, task: progress.Task, *, timeout: float | None, output: Sink) -> Ranks:
    """Make the processes that `spec` describes and join them; what has begun is ended when that fails."""
    try:
        starter.open(task)
        task.advance("torch is imported")
        state = GroupState(starter=starter, spec=spec, sink=output)
    except BaseException:
        starter.close()
        raise
    calls = Calls(state, world_size=spec.world_size, timeout=timeout)
    ranks = Ranks(state, calls, world_size=spec.world_size, backend=spec.backend, device=spec.device)
    try:
        with calls.exclusive():
            calls.begin(range(spec.world_size))
            task.advance("processes are up")
            calls.join()
            task.advance("the process group is joined")
    except RankError as error:
        ranks.close()
        raise LaunchError(_why(error.causes[0])) from error
    except BaseException:
        ranks.close()
        raise
    return ranks


def current() -> Ranks | None:
    """The group that was started last and is still open, or None."""
    global _latest
    if _latest is None or _latest.closed:
        _latest = next(reversed(_open_groups()), None)
    return _latest


def shutdown() -> None:
    """Close every group and end the fork server: no process of the kit is left."""
    for ranks in _open_groups():
        ranks.close()
    forkserver.stop()


def _open_groups() -> list[Ranks]:
    found = [ranks for started in _started if (ranks := started()) is not None and not ranks.closed]
    _started[:] = [weakref.ref(ranks) for ranks in found]
    return found


def _check(world_size: int, backend: str, device: str, threads: int | None) -> str:
    """Refuse arguments that cannot work; the device that the ranks will use."""
    if sys.platform != "linux":
        raise LaunchError(
            f"this is {sys.platform}; ranks run on Linux only (WSL included). Use a Linux machine or WSL 2."
        )
    if in_kit_rank():
        raise LaunchError("this process is a rank of a group; expected a notebook or a script to start ranks from")
    if not isinstance(world_size, int) or isinstance(world_size, bool):
        raise TypeError(f"world_size is {world_size!r}; expected a whole number of ranks, as in kit.launch(2)")
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}; expected at least 1, as in kit.launch(2)")
    if backend not in _BACKENDS:
        raise ValueError(f"backend is {backend!r}; expected one of {', '.join(map(repr, _BACKENDS))}")
    if device not in _DEVICES:
        raise ValueError(f"device is {device!r}; expected 'cpu' or 'cuda' (each rank takes the GPU of its number)")
    if threads is not None and threads < 1:
        raise ValueError(f"threads is {threads}; expected at least 1 thread for each rank, or None to share the cores")
    return "cuda" if backend == "nccl" else device


def _why(failure: Failure) -> str:
    return failure.message if failure.type == "LookupError" else f"rank {failure.rank} did not start: {failure}"
