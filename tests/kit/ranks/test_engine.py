"""Starting and ending groups."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from kit import progress
from kit.ranks import engine, forkserver
from kit.ranks.errors import ClosedError, LaunchError, RankError
from kit.ranks.group import Ranks

ROOT = Path(__file__).parents[3]


def test_launch_joins_ranks_in_a_real_process_group(pair: Ranks) -> None:
    assert pair.execute("dist.get_backend(), dist.get_rank(), dist.get_world_size()") == [
        ("gloo", 0, 2),
        ("gloo", 1, 2),
    ]
    assert repr(pair) == "Ranks(2 ranks, gloo, cpu, epoch 0)"
    assert (pair.world_size, pair.backend, pair.device, pair.epoch, pair.alive) == (2, "gloo", "cpu", 0, (0, 1))


def test_a_second_group_starts_within_two_seconds(pair: Ranks) -> None:
    begun = time.monotonic()
    with engine.launch(2):
        assert time.monotonic() - begun < 2.0, "the fork server is warm"


def test_threads_are_as_asked_and_by_default_the_cores_shared_out() -> None:
    with engine.launch(1, threads=2) as ranks:
        assert ranks.execute("import os; torch.get_num_threads(), os.environ['OMP_NUM_THREADS']") == [(2, "2")]
    cores = len(os.sched_getaffinity(0))
    with engine.launch(2) as ranks:
        assert ranks.execute("torch.get_num_threads()") == [max(1, min(8, cores // 2))] * 2


def test_launch_reports_its_progress() -> None:
    seen: list[progress.Event] = []
    stop = progress.subscribe(seen.append)
    try:
        engine.launch(1).close()
    finally:
        stop()
    assert {event.task for event in seen} == {"starting 1 rank"}
    assert [event.message for event in seen[1:4]] == [
        "torch is imported",
        "processes are up",
        "the process group is joined",
    ]
    assert seen[-1].state is progress.State.FINISHED


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"world_size": 0}, ValueError, "world_size is 0; expected at least 1, as in kit.launch(2)"),
        ({"world_size": "2"}, TypeError, "world_size is '2'; expected a whole number of ranks, as in kit.launch(2)"),
        ({"world_size": 2, "backend": "mpi"}, ValueError, "backend is 'mpi'; expected one of 'gloo', 'nccl'"),
        (
            {"world_size": 2, "device": "cuda:1"},
            ValueError,
            "device is 'cuda:1'; expected 'cpu' or 'cuda' (each rank takes the GPU of its number)",
        ),
        (
            {"world_size": 2, "threads": 0},
            ValueError,
            "threads is 0; expected at least 1 thread for each rank, or None to share the cores",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        engine.launch(**arguments)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_a_rank_starts_no_ranks(pair: Ranks) -> None:
    with pytest.raises(RankError, match="LaunchError: this process is a rank of a group; expected a notebook"):
        pair.execute("kit.ranks.engine.launch(2)", ranks=[0])


def test_another_system_than_linux_gets_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(LaunchError) as caught:
        engine.launch(2)
    assert str(caught.value) == "this is darwin; ranks run on Linux only (WSL included). Use a Linux machine or WSL 2."


def test_more_ranks_than_gpus_with_nccl_is_an_error_that_offers_gloo() -> None:
    gpus = torch.cuda.device_count()
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(LaunchError) as caught:
        engine.launch(gpus + 2, backend="nccl")
    text = str(caught.value)
    assert f"{gpus + 2} ranks on GPUs with nccl, but this machine shows {gpus} GPU" in text
    assert f"Use kit.launch({gpus + 2}) (gloo, on the CPU)" in text
    left = {p for p in psutil.Process().children(recursive=True) if p.pid != forkserver.server().pid}
    assert left <= before


def test_current_is_the_latest_group_that_is_open() -> None:
    before = engine.current()  # a group that other tests share may be open
    with engine.launch(1) as first:
        assert engine.current() is first
        with engine.launch(1) as second:
            assert engine.current() is second
        assert engine.current() is first
    assert engine.current() is before


def test_a_closed_group_says_so(pair: Ranks) -> None:
    pair.close()
    pair.close()
    assert repr(pair) == "Ranks(closed, 2 ranks, gloo)"
    assert (pair.alive, pair.pids, pair.ended) == ((), {}, {})
    for use in (lambda: pair.run(int), lambda: pair.push(a=1), lambda: pair.replace(0), pair.interrupt):
        with pytest.raises(ClosedError) as caught:
            use()
        assert str(caught.value) == (
            "this group of 2 ranks is closed; expected an open one. Start another with kit.launch(2)."
        )


def test_a_group_that_nobody_holds_ends_its_processes() -> None:
    ranks = engine.launch(1)
    process = psutil.Process(ranks.pids[0])
    other = engine.launch(1)  # the latest group is held by the engine
    del ranks
    other.close()
    process.wait(timeout=5)


def test_closing_ends_ranks_that_are_stuck_in_a_child_process(pair: Ranks) -> None:
    (child, _) = pair.execute("import subprocess\nsubprocess.Popen(['sleep', '100']).pid")
    assert psutil.pid_exists(child)
    pair.close()
    deadline = time.monotonic() + 3
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "a child process of a rank outlived its group"
        time.sleep(0.02)


def test_the_store_and_gloo_listen_on_the_loopback_address_only(pair: Ranks) -> None:
    for pid in (os.getpid(), *pair.pids.values()):
        listening = [c.laddr.ip for c in psutil.Process(pid).net_connections() if c.status == psutil.CONN_LISTEN]
        assert set(listening) <= {"127.0.0.1"}, f"process {pid} listens on {listening}"
        assert listening


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_script_needs_no_main_guard_and_ends_by_itself(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from kit.ranks import launch\n"
        "def double(x):\n    return 2 * x\n"
        "ranks = launch(2, threads=1)\nprint(ranks.run(double, 21), *ranks.pids.values())\n"
    )
    # torch warns of a name server that does not answer in time; what is looked for are words of ours.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=50)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("[42, 42] ")
    pids = [int(pid) for pid in done.stdout.split()[2:]]
    assert len(pids) == 2
    assert not any(_is_alive(pid) for pid in pids)


def test_shutdown_ends_the_fork_server_too() -> None:
    engine.launch(1)
    server = psutil.Process(forkserver.server().pid)
    engine.shutdown()
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
    assert engine.current() is None
    with engine.launch(1) as ranks:  # and another can be started
        assert ranks.run(int) == [0]


def test_a_killed_fork_server_takes_its_ranks_along_and_is_started_anew(pair: Ranks) -> None:
    process = psutil.Process(pair.pids[0])
    os.kill(forkserver.server().pid, signal.SIGKILL)
    process.wait(timeout=5)
    with engine.launch(1) as ranks:
        assert ranks.run(int) == [0]
