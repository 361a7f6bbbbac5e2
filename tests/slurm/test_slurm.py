"""Ranks and batch files on a real Slurm of one node."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pytest

from kit.ranks import engine
from kit.ranks.batch_script import batch_script
from kit.ranks.errors import LaunchError, RankError

ROOT = Path(__file__).parents[2]
SECONDS_A_TEST = 150
pytestmark = pytest.mark.slow

MODEL = """
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
net = DDP(model)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
inputs = torch.arange(8.0).reshape(2, 4) / 8 + rank
losses = []
"""
STEP = """
for _ in range(3):
    optimizer.zero_grad()
    loss = (net(inputs) - 1).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    def over(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test took more than {SECONDS_A_TEST} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(SECONDS_A_TEST)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def await_gone(pids: list[int], *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while alive := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < deadline, f"processes {alive} are alive after {seconds} s"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_group_on_slurm_trains_breaks_recovers_and_is_cancelled(slurm: Any, tmp_path: Path) -> None:
    with engine.launch(2, engine="slurm", host="127.0.0.1", folder=tmp_path, time_limit="10", threads=1) as ranks:
        (job,) = slurm.jobs()
        assert ranks.execute("import os\nos.environ['SLURM_JOB_ID'], os.environ['SLURM_PROCID']") == [
            (job, "0"), (job, "1"),
        ]  # fmt: skip
        assert ranks.engines.keys() == {0, 1}
        ranks.execute(MODEL)
        ranks.execute(STEP)

        begun = time.monotonic()
        with pytest.raises(RankError) as caught:
            ranks.execute("if rank == 1: raise ValueError('boom')\nnet(inputs).sum().backward()", filename="<cell>")
        assert time.monotonic() - begun < 4.0
        assert caught.value.rank == 1
        assert str(caught.value).startswith("rank 1: ValueError: boom\n    <cell>, line 1: if rank == 1: raise")
        assert [failure.rank for failure in caught.value.consequences] == [0]

        ranks.execute("net = DDP(model)\noptimizer = torch.optim.SGD(net.parameters(), lr=0.1)")
        ranks.execute(STEP)
        first, second = ranks.pull("losses")
        assert len(first) == len(second) == 6
        assert first[-1] + second[-1] < first[0] + second[0]
        weights = ranks.pull("model.weight.detach()")
        assert weights[0].equal(weights[1])

        threading.Timer(0.3, os.kill, (ranks.pids[1], signal.SIGKILL)).start()
        with pytest.raises(RankError, match=r"rank 1: died: SIGKILL"):
            ranks.execute("import time\ntime.sleep(5)\ndist.barrier()")
        begun = time.monotonic()
        ranks.replace(1)
        assert time.monotonic() - begun < 3.0
        assert ranks.pull("'model' in globals()") == [True, False]
        assert slurm.jobs() == [job], "the new rank is in the same job"
        pids = list(ranks.pids.values())
    assert slurm.await_end(job, seconds=20) in ("CANCELLED", "COMPLETED", "FAILED")
    assert slurm.jobs() == []
    await_gone(pids, seconds=3)
    assert list(tmp_path.iterdir()) == []


def test_a_lost_engine_is_replaced_by_one_of_a_new_job(slurm: Any, tmp_path: Path) -> None:
    with engine.launch(2, engine="slurm", host="127.0.0.1", folder=tmp_path, threads=1) as ranks:
        (job,) = slurm.jobs()
        before = ranks.engines
        engine_pid = psutil.Process(ranks.pids[1]).parent().parent().pid  # of the fork server, which is the rank's
        threading.Timer(0.3, os.kill, (engine_pid, signal.SIGKILL)).start()
        with pytest.raises(RankError, match=rf"rank 1: died: its engine {before[1]} on .* is gone"):
            ranks.execute("import time\ntime.sleep(5)\ndist.barrier()")
        ranks.replace(1)
        assert ranks.engines[0] == before[0]
        assert ranks.engines[1] not in before.values()
        assert sorted(slurm.jobs())[0] == job
        assert len(slurm.jobs()) == 2
        assert ranks.execute("y = torch.ones(1)\ndist.all_reduce(y)\ny.item()") == [2.0, 2.0]
    assert slurm.jobs() == []


def test_a_job_that_stays_in_the_queue_is_given_up_and_cancelled(slurm: Any, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="0 of 2 engines came within 3 s; expected all"):
        engine.launch(
            2, engine="slurm", host="127.0.0.1", folder=tmp_path, sbatch=["--begin=now+1hour"], start_seconds=3
        )
    assert slurm.jobs() == []
    assert list(tmp_path.iterdir()) == []


def test_what_sbatch_refuses_is_said_in_its_own_words(slurm: Any, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="invalid partition specified: nowhere"):
        engine.launch(2, engine="slurm", host="127.0.0.1", folder=tmp_path, partition="nowhere")
    assert list(tmp_path.iterdir()) == []


_NOTEBOOK = """
import json, sys, threading
from kit.ranks import engine
ranks = engine.launch(2, engine="slurm", host="127.0.0.1", folder=sys.argv[1], threads=1)
ranks.execute("import subprocess; child = subprocess.Popen(['sleep', '100']).pid")
pids = [*ranks.pids.values(), *ranks.pull("child")]
threading.Timer(0.3, lambda: print(json.dumps(pids), flush=True)).start()
ranks.execute("if rank == 0: dist.all_reduce(torch.ones(1))\\nelse:\\n    while True: pass")
"""


def test_when_the_notebook_is_killed_ranks_end_and_the_job_leaves_the_queue(slurm: Any, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    folder = tmp_path / "files"
    with subprocess.Popen(
        [sys.executable, "-c", _NOTEBOOK, str(folder)], stdout=subprocess.PIPE, env=environment
    ) as notebook:
        assert notebook.stdout is not None
        try:
            pids = json.loads(notebook.stdout.readline())
            assert len(pids) == 4
        finally:
            notebook.send_signal(signal.SIGKILL)
        notebook.wait()
        await_gone(pids, seconds=3)
        deadline = time.monotonic() + 20
        while slurm.jobs() or list(folder.iterdir()):
            assert time.monotonic() < deadline, f"jobs {slurm.jobs()}, files {list(folder.iterdir())}"
            time.sleep(0.1)


# ---- batch files ------------------------------------------------------------------------------------------------


def submit(text: str, folder: Path) -> str:
    file = folder / "train.sbatch"
    file.write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sbatch", "--parsable", f"--chdir={folder}", file], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.strip()


def output_of(folder: Path) -> str:
    return "\n".join(file.read_text() for file in folder.glob("*.out"))


def await_file(file: Path, slurm: Any) -> None:
    deadline = time.monotonic() + 90
    while not file.exists():
        assert time.monotonic() < deadline, f"{slurm.why(f'no {file.name}')}\n{output_of(file.parent)}"
        time.sleep(0.1)


def train(folder: str, steps: int) -> list[float]:
    """The training function of these tests: the same for `ranks.run` and for a batch file."""
    from pathlib import Path

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    net = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inputs = torch.arange(8.0).reshape(2, 4) / 8 + dist.get_rank()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (net(inputs) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    Path(folder, f"losses{dist.get_rank()}of{dist.get_world_size()}").write_text(repr(losses))
    return losses


def fail_on_rank_one() -> None:
    import torch.distributed as dist

    if dist.get_rank() == 1:
        raise ValueError("boom")
    dist.barrier()


def train_until_time_is_up(folder: str) -> None:
    import time
    from pathlib import Path

    import torch.distributed as dist

    from kit.ranks.batch_entry import time_is_up

    Path(folder, f"began{dist.get_rank()}").touch()
    while not time_is_up():
        time.sleep(0.05)
    Path(folder, f"saved{dist.get_rank()}").touch()


def test_a_batch_file_trains_as_the_notebook_does(slurm: Any, tmp_path: Path) -> None:
    job = submit(batch_script(train, str(tmp_path), 3, ranks_per_node=2, interface="lo"), tmp_path)
    assert slurm.await_end(job, seconds=120) == "COMPLETED", output_of(tmp_path)
    batch = [eval((tmp_path / f"losses{rank}of2").read_text()) for rank in (0, 1)]
    with engine.launch(2, threads=1) as ranks:
        assert ranks.run(train, str(tmp_path), 3) == batch


def test_a_batch_job_fails_when_a_rank_fails_and_says_why(slurm: Any, tmp_path: Path) -> None:
    job = submit(batch_script(fail_on_rank_one, ranks_per_node=2, interface="lo"), tmp_path)
    assert slurm.await_end(job, seconds=120) == "FAILED"
    assert slurm.job(job)["ExitCode"] == "1:0"
    assert "ValueError: boom" in output_of(tmp_path)


def test_a_batch_job_can_save_before_its_time_is_up(slurm: Any, tmp_path: Path) -> None:
    text = batch_script(train_until_time_is_up, str(tmp_path), ranks_per_node=2, interface="lo", warn_seconds=60)
    job = submit(text, tmp_path)
    for rank in (0, 1):
        await_file(tmp_path / f"began{rank}", slurm)
    # what --signal=B:USR2 has Slurm do when the limit is near
    subprocess.run(["scancel", "--batch", "--signal=USR2", job], check=True)
    assert slurm.await_end(job, seconds=30) == "COMPLETED", output_of(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("saved*")) == ["saved0", "saved1"]


def test_a_warning_that_comes_before_any_rank_is_kept_for_them(slurm: Any, tmp_path: Path) -> None:
    # while the job's set-up goes on; the ranks start, import torch and join only afterwards
    text = batch_script(
        train_until_time_is_up, str(tmp_path), ranks_per_node=2, interface="lo", warn_seconds=60,
        setup=["touch set_up", "sleep 1"],
    )  # fmt: skip
    job = submit(text, tmp_path)
    await_file(tmp_path / "set_up", slurm)
    subprocess.run(["scancel", "--batch", "--signal=USR2", job], check=True)
    assert slurm.await_end(job, seconds=60) == "COMPLETED", output_of(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("saved*")) == ["saved0", "saved1"]


def test_slurm_itself_warns_the_ranks_before_the_limit(slurm: Any, tmp_path: Path) -> None:
    # Limits are counted in minutes and looked at every 30 s, when what is due until the next look is done: this warning
    # comes within 30 s of the start, whether the ranks are ready or not.
    text = batch_script(
        train_until_time_is_up, str(tmp_path), ranks_per_node=2, interface="lo", time_limit="1", warn_seconds=55
    )
    job = submit(text, tmp_path)
    assert slurm.await_end(job, seconds=100) == "COMPLETED", output_of(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("saved*")) == ["saved0", "saved1"]


def test_the_warning_harms_no_script_that_does_not_listen(slurm: Any, tmp_path: Path) -> None:
    script = tmp_path / "wait.py"
    script.write_text(
        "import pathlib, sys, time\nhere = pathlib.Path(sys.argv[1])\n(here / 'began').touch()\n"
        "while not (here / 'go').exists(): time.sleep(0.05)\n(here / 'finished').touch()\n"
    )
    job = submit(batch_script(script, tmp_path, warn_seconds=60), tmp_path)
    await_file(tmp_path / "began", slurm)
    subprocess.run(["scancel", "--batch", "--signal=USR2", job], check=True)
    time.sleep(2.0)  # the signal goes from the batch shell through srun to the step
    (tmp_path / "go").touch()
    assert slurm.await_end(job, seconds=30) == "COMPLETED", output_of(tmp_path)
    assert (tmp_path / "finished").exists()
    assert output_of(tmp_path) == ""


def test_a_batch_file_runs_a_script_with_its_arguments(slurm: Any, tmp_path: Path) -> None:
    script = tmp_path / "write_rank.py"
    script.write_text(
        "import os, pathlib, sys\npathlib.Path(sys.argv[1], 'rank' + os.environ['RANK']).write_text(sys.argv[2])\n"
    )
    job = submit(batch_script(script, tmp_path, "two words", ranks_per_node=2), tmp_path)
    assert slurm.await_end(job, seconds=60) == "COMPLETED", output_of(tmp_path)
    assert [(tmp_path / f"rank{rank}").read_text() for rank in (0, 1)] == ["two words"] * 2
