"""ipyparallel at its best settings, doing what the kit's ranks do.

Best settings, each tried against the default on two cores: no second of waiting between controller and engines, the
controller's parts as threads of one process, no task scheduler, a heartbeat of 0.1 s (an engine is registered only
at the next beat), engines without nannies. They halve its start (10 s to 5 s) and its round trip (9 ms to 5 ms).
"""

import logging
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ipyparallel as ipp

NAME = f"ipyparallel {ipp.__version__}"
AS_IT_COMES: dict[str, Any] = {"controller_ip": "127.0.0.1", "log_level": logging.ERROR}
SETTINGS: dict[str, Any] = {
    **AS_IT_COMES,
    "delay": 0,
    "controller_args": [
        "--IPController.use_threads=True",
        "--TaskScheduler.scheme_name=pure",
        "--HeartMonitor.period=100",
    ],
    "engine_args": ["--IPEngine.enable_nanny=False"],
}


def join(rank: int, world_size: int, port: int) -> None:
    """On an engine: make a process group and prove that it works."""
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    store = dist.TCPStore("127.0.0.1", port, world_size, rank == 0)
    dist.init_process_group("gloo", rank=rank, world_size=world_size, store=store)
    dist.all_reduce(torch.ones(1))


def raise_or_wait(rank: int) -> None:
    """On an engine: the last rank raises while the others wait for it."""
    import torch
    import torch.distributed as dist

    if rank == dist.get_world_size() - 1:
        raise ValueError("boom")
    dist.all_reduce(torch.ones(1))


class Peer:
    """Engines that are ranks of one group."""

    def __init__(self, world_size: int) -> None:
        here = str(Path(__file__).parent)  # engines import this module
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([here, *os.environ.get("PYTHONPATH", "").split(":")]))
        self._cluster = ipp.Cluster(n=world_size, **SETTINGS)
        self.client = self._cluster.start_and_connect_sync(activate=False)
        self.all = self.client[:]
        self._world_size = world_size

    def join(self) -> None:
        """A (new) process group of all engines."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for result in [
            self.client[rank].apply_async(join, rank, self._world_size, port) for rank in range(self._world_size)
        ]:
            result.get()

    def seconds_until_control(self, limit: float) -> float | None:
        """Until every rank has answered after one of them raised; None when one has not within the limit."""
        begun = time.perf_counter()
        waiting = [self.client[rank].apply_async(raise_or_wait, rank) for rank in range(self._world_size)]
        while not all(result.ready() for result in waiting):
            if time.perf_counter() - begun > limit:
                return None
            time.sleep(0.01)
        return time.perf_counter() - begun

    def close(self) -> None:
        """End controller and engines."""
        self.client.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that engines go, which is what was asked for
            self._cluster.stop_cluster_sync()


@contextmanager
def open_peer(world_size: int) -> Iterator[Peer]:
    """Engines with a working group, ended after the block."""
    peer = Peer(world_size)
    try:
        peer.join()
        yield peer
    finally:
        peer.close()
