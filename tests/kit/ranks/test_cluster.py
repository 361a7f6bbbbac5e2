"""Groups through ipyparallel: what is particular to a cluster. What all engines share is in test_conformance*.py."""

import contextlib
import os
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from kit.ranks import engine
from kit.ranks.agent import Place
from kit.ranks.cluster import Engines, _in_order
from kit.ranks.cluster_options import options_of
from kit.ranks.errors import LaunchError, RankError
from kit.ranks.spec import Spec

SUM = "y = torch.ones(1)\ndist.all_reduce(y)\ny.item()"


def place(host: str, *, task: int = -1, gpus: str = "", cores: int = 8) -> Place:
    return Place(host=host, python=(3, 11), cores=tuple(range(cores)), visible_gpus=gpus, task=task)


def test_a_cluster_of_the_kits_own_is_started_and_stopped_with_its_group(tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    with engine.launch(2, engine="ipyparallel", threads=1, folder=tmp_path) as ranks:
        assert ranks.execute(SUM) == [2.0, 2.0]
        assert sorted(ranks.engines) == [0, 1]
        assert sorted(ranks.engines.values()) == [0, 1]
        assert ranks.hosts == dict.fromkeys((0, 1), socket.gethostname())
        started = set(psutil.Process().children(recursive=True)) - before
        listening = [
            (process.pid, connection.laddr.ip)
            for process in started
            for connection in process.net_connections()
            if connection.status == psutil.CONN_LISTEN
        ]
        assert {ip for _, ip in listening} == {"127.0.0.1"}, f"open to the network: {listening}"
        folder = next(tmp_path.iterdir())
        assert folder.stat().st_mode & 0o077 == 0, "the folder holds the key to the cluster"
    _, alive = psutil.wait_procs(started, timeout=5)
    assert alive == []
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_of_the_persons_own_goes_on_after_the_group(cluster: Any) -> None:
    with engine.launch(2, engine=cluster, threads=1) as ranks:
        first = ranks.engines
    with engine.launch(2, engine=cluster, threads=1) as ranks:
        assert ranks.engines == first
        assert ranks.execute(SUM) == [2.0, 2.0]


def test_a_cluster_that_does_not_run_is_refused() -> None:
    ipyparallel = pytest.importorskip("ipyparallel")
    with pytest.raises(LaunchError) as caught:
        engine.launch(2, engine=ipyparallel.Cluster(n=2, load_profile=False))
    assert str(caught.value) == (
        "the given ipyparallel Cluster is not running; expected one with a controller and an engine for each rank. "
        "Call cluster.start_cluster_sync(n=2) first."
    )


def test_a_cluster_with_too_few_engines_is_refused(cluster: Any) -> None:
    with pytest.raises(LaunchError, match="2 of 3 engines came within 1 s; expected all"):
        engine.launch(3, engine=cluster, start_seconds=1.0)


def test_a_rank_dies_without_its_engine_and_the_map_survives_its_replacement(cluster: Any) -> None:
    with engine.launch(2, engine=cluster, threads=1) as ranks:
        before = ranks.engines
        os.kill(ranks.pids[1], signal.SIGKILL)
        with contextlib.suppress(psutil.NoSuchProcess):  # gone already
            psutil.wait_procs([psutil.Process(ranks.pids[1])] if 1 in ranks.pids else [], timeout=5)
        ranks.replace(1)
        assert ranks.engines == before
        assert ranks.execute(SUM) == [2.0, 2.0]


def test_an_engine_that_is_lost_is_replaced_and_the_map_says_by_which(tmp_path: Path) -> None:
    with engine.launch(2, engine="ipyparallel", threads=1, folder=tmp_path) as ranks:
        ranks.execute("kept = 10 + rank")
        lost = psutil.Process(ranks.pids[1]).parent().parent()  # engine -> fork server -> rank
        lost.send_signal(signal.SIGKILL)
        with pytest.raises(RankError) as caught:
            ranks.execute("import time\ntime.sleep(20)\ndist.barrier()", filename="<c>")
        assert caught.value.rank == 1
        assert str(caught.value).startswith(
            f"rank 1: died: its engine 1 on {socket.gethostname()} is gone, or that machine\n"
            "its variables are lost; ranks.replace(1) starts it anew and rejoins all ranks\n"
        )
        ranks.replace(1)
        assert ranks.engines == {0: 0, 1: 2}
        assert ranks.pull("globals().get('kept')") == [10, None]
        assert ranks.execute(SUM) == [2.0, 2.0]


def test_closing_ends_what_a_rank_of_a_cluster_has_started(cluster: Any) -> None:
    with engine.launch(2, engine=cluster, threads=1) as ranks:
        children = ranks.execute("import subprocess\nsubprocess.Popen(['sleep', '100']).pid")
    deadline = time.monotonic() + 3
    while any(psutil.pid_exists(child) for child in children):
        assert time.monotonic() < deadline, "a child process of a rank outlived its group"
        time.sleep(0.02)


def test_ranks_of_the_environment_know_nothing_of_the_key_to_the_cluster(cluster: Any) -> None:
    with engine.launch(2, engine=cluster, threads=1) as ranks:
        assert ranks.execute("import os\n[name for name in os.environ if 'CONNECTION_INFO' in name]") == [[], []]
        assert ranks.execute("os.environ['RANK'], os.environ['LOCAL_WORLD_SIZE']") == [("0", "2"), ("1", "2")]


@pytest.mark.skipif(shutil.which("mpiexec") is None, reason="needs mpiexec (mpich)")
def test_a_group_over_mpi_needs_no_mpi4py_and_follows_the_numbers_of_mpi(tmp_path: Path) -> None:
    with engine.launch(2, engine="mpi", host="127.0.0.1", folder=tmp_path, threads=1) as ranks:
        assert ranks.execute(SUM) == [2.0, 2.0]
        assert ranks.execute("import os\nos.environ.get('PMI_RANK', os.environ.get('PMIX_RANK'))") == ["0", "1"]
    assert list(tmp_path.iterdir()) == []


def test_ranks_follow_the_task_numbers_of_slurm_and_mpi() -> None:
    assert _in_order({0: place("b", task=2), 1: place("a", task=0), 2: place("a", task=1)}) == [1, 2, 0]


def test_without_task_numbers_ranks_of_one_machine_stand_together() -> None:
    assert _in_order({0: place("b"), 1: place("a"), 2: place("b"), 3: place("a")}) == [0, 2, 1, 3]


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        # two machines with two ranks each that share cores and GPUs
        ([place("a"), place("a"), place("b"), place("b")], [(0, 2, 4), (1, 2, 4), (0, 2, 4), (1, 2, 4)]),
        # Slurm shows each task its own GPU: each is the first of its own
        ([place("a", gpus="0"), place("a", gpus="1")], [(0, 1, 4), (0, 1, 4)]),
        # a machine with more cores than threads pay for
        ([place("a", cores=64), place("b", cores=1)], [(0, 1, 8), (0, 1, 1)]),
    ],
)
def test_local_numbers_and_threads(places: list[Place], expected: list[tuple[int, int, int]]) -> None:
    engines = Engines(options_of("ipyparallel", {}, world_size=len(places)), len(places))
    try:
        engines._places = dict(enumerate(places))
        engines.engine_of = {rank: rank for rank in range(len(places))}
        spec = Spec(
            rank=0, world_size=len(places), backend="gloo", device="cpu", threads=0, host="", port=0, epoch=0,
            check_collectives=True, local_rank=0, local_world_size=0,
        )  # fmt: skip
        found = [engines._placed(_of_rank(spec, rank)) for rank in range(len(places))]
    finally:
        engines.close()
    assert [(one.local_rank, one.local_world_size, one.threads) for one in found] == expected


def _of_rank(spec: Spec, rank: int) -> Spec:
    from dataclasses import replace

    return replace(spec, rank=rank)
