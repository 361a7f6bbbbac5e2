"""The text of batch files; tests/slurm runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit.ranks.batch_script import batch_script
from kit.ranks.group import Ranks


def train(rows: int) -> None:
    from kit.ranks.batch_entry import time_is_up

    Path(os.environ["RESULT"]).write_text(f"{rows} {os.environ['RANK']} {time_is_up()}")


def test_a_script_on_two_nodes() -> None:
    text = batch_script(
        "train.py", "--rate", 0.1, nodes=2, ranks_per_node=4, cpus_per_rank=2, gpus_per_node=4, time_limit="2:00:00",
        warn_seconds=120, sbatch=["--partition=gpu"], setup=["module load cuda"], python="python",
    )  # fmt: skip
    head, _, run = text.partition("set -euo pipefail\n")
    assert head.splitlines() == [
        "#!/bin/bash",
        "#SBATCH --job-name=train",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=8",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --time=2:00:00",
        "#SBATCH --signal=B:USR2@120",
        "#SBATCH --output=%x-%j.out",
        "#SBATCH --partition=gpu",
    ]
    lines = run.splitlines()
    assert lines.index("module load cuda") < lines.index(
        "srun --ntasks-per-node=1 --cpus-per-task=8 --kill-on-bad-exit=1 \\"
    )
    assert (
        "  python -m torch.distributed.run --nnodes=2 --nproc-per-node=4 --max-restarts=0 --rdzv-backend=c10d "
        '--rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" train.py --rate 0.1 &'
    ) in lines
    assert "export KIT_BATCH_BACKEND=nccl" in lines
    assert [line for line in lines if line][-1] == 'exit "$status"', "nothing comes after the training's own status"


def test_the_text_is_a_shell_script_whatever_the_arguments_are() -> None:
    text = batch_script("it's.py", "two words; $HOME", python="/opt/my python")
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_function_in_the_text_runs_as_a_rank(tmp_path: Path, root: Path) -> None:
    text = batch_script(train, 3)
    exports = [line for line in text.splitlines() if line.startswith("export KIT_")]
    environment = {
        **os.environ, "PYTHONPATH": str(root), "RESULT": str(tmp_path / "result"), "RANK": "0", "LOCAL_RANK": "0",
        "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    command = "\n".join([*exports, f"exec {sys.executable} -m kit.ranks.batch_entry"])
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "result").read_text() == "3 0 False"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": 0}, "nodes is 0; expected at least 1"),
        ({"name": "a b"}, "name is 'a b'; expected letters, digits, dots, dashes and underscores"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        batch_script("train.py", **arguments)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_a_function_that_carries_data_along_is_refused() -> None:
    data = os.urandom(200_000)
    with pytest.raises(ValueError, match=r"take \d+ bytes; expected at most 120000, since they travel in the batch"):
        batch_script(lambda: data)


def test_a_group_writes_the_batch_file_of_its_own_size(pair: Ranks) -> None:
    text = pair.batch_script(train, 3)
    assert "--nnodes=1 --nproc-per-node=2" in text
    assert "export KIT_BATCH_BACKEND=gloo" in text
