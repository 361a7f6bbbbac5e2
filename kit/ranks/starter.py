"""The seam between the two engines of this room: what starts a rank and gives back the ends of its streams.

Here ranks are forked on this machine (`forkserver.py`); `cluster.py` has them started on others. Everything above
(guard, epochs, calls, output, errors, magics) knows a rank as a `RankProcess` and does not see where it runs.
"""

import os
from dataclasses import replace
from typing import Protocol

from kit import progress
from kit.ranks import forkserver
from kit.ranks.forkserver import RankProcess
from kit.ranks.spec import Spec, variables

HOST = "127.0.0.1"
MAX_THREADS = 8


class Starter(Protocol):
    """Starts the ranks of one group. `host` is the address at which they reach the notebook."""

    @property
    def host(self) -> str:
        """Where the store of the group listens."""

    def open(self, task: progress.Task) -> None:
        """Be ready to start ranks. Raises `LaunchError`."""

    def start(self, spec: Spec) -> RankProcess:
        """Start a rank, anew if need be. Raises `LaunchError`."""

    def close(self) -> None:
        """Give back what this group alone has used; its ranks have ended."""


class LocalStarter:
    """Forks ranks from the fork server of this process, which stays for the next group."""

    host = HOST

    def open(self, task: progress.Task) -> None:
        """Wait until torch is imported here and in the fork server. Raises `LaunchError`."""
        server = forkserver.server()
        import torch.distributed  # noqa: F401  # imported here while the fork server imports it too

        server.wait_ready()

    def start(self, spec: Spec) -> RankProcess:
        """Fork a rank; by default it gets its share of the cores. Raises `LaunchError`."""
        cores = len(os.sched_getaffinity(0))
        local = replace(
            spec,
            local_rank=spec.rank,
            local_world_size=spec.world_size,
            threads=spec.threads or max(1, min(MAX_THREADS, cores // spec.world_size)),
        )
        return forkserver.server().fork(local, {**os.environ, **variables(local, interface="lo")})

    def close(self) -> None:
        """Nothing is of this group alone."""
