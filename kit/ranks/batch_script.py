"""Write a Slurm batch file that trains without a notebook: the same function that `ranks.run` is given.

The usual templates go wrong in four ways, each seen on a real Slurm 22.05 and avoided here: `torchrun` in the batch
step runs on the first node only; MASTER_ADDR is not set by Slurm; any command after the training makes a failed job
COMPLETED; `--signal` without a trap kills the job early. The function travels inside the file, so the file is all
that is needed on a machine where the kit is installed.
"""

import base64
import re
import shlex
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from kit.ranks import wire

PAYLOAD_VARIABLE = "KIT_BATCH_PAYLOAD"
_MOST_BYTES = 120_000  # Linux takes 131072 bytes in one variable
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def batch_script(
    training: Callable[..., Any] | str | Path,
    *args: Any,
    nodes: int = 1,
    ranks_per_node: int = 1,
    cpus_per_rank: int = 1,
    gpus_per_node: int = 0,
    backend: str = "",
    time_limit: str = "",
    name: str = "",
    output: str = "%x-%j.out",
    warn_seconds: int = 0,
    timeout_seconds: int = 600,
    interface: str = "",
    sbatch: Sequence[str] = (),
    setup: Sequence[str] = (),
    python: str = "",
) -> str:
    """The text of a batch file for `sbatch` that runs `training(*args)` on `nodes * ranks_per_node` ranks.

    `training` is a function, called in a process group of all ranks, or the path of a script, called with `args` as
    text under torchrun. `backend`: "nccl" when the nodes give GPUs, else "gloo". `warn_seconds` before the time limit
    (Slurm may be a minute early) every rank gets SIGUSR2, as soon as it has a handler for it: in a function
    `kit.ranks.batch_entry.time_is_up()` is then true, and it can save and return. `timeout_seconds` for a collective
    that nobody joins. `sbatch`: more options, as in `["--partition=gpu"]`; `setup`: shell lines before the training, as
    in `["module load cuda"]`. `python`: the interpreter on the nodes, by default this one.

    The job's state is that of the training: FAILED when a rank fails. Raises ValueError.
    """
    _check(nodes=nodes, ranks_per_node=ranks_per_node, cpus_per_rank=cpus_per_rank, timeout_seconds=timeout_seconds)
    backend = backend or ("nccl" if gpus_per_node else "gloo")
    cpus = ranks_per_node * cpus_per_rank
    interpreter = shlex.quote(python or sys.executable)
    payload, target = _target(training, args)
    options = [
        f"--job-name={_job_name(name, training)}",
        *(f"--nodes={nodes}", "--ntasks-per-node=1", f"--cpus-per-task={cpus}"),
        *([f"--gpus-per-node={gpus_per_node}"] if gpus_per_node else []),
        *([f"--time={time_limit}"] if time_limit else []),
        *([f"--signal=B:USR2@{warn_seconds}"] if warn_seconds else []),
        f"--output={output}",
        *sbatch,
    ]
    variables = {
        "OMP_NUM_THREADS": str(cpus_per_rank),
        "KIT_BATCH_BACKEND": backend,
        "KIT_BATCH_TIMEOUT": str(timeout_seconds),
        **({"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}),
        **({PAYLOAD_VARIABLE: payload} if payload else {}),
    }
    command = [
        interpreter, "-m", "torch.distributed.run",
        f"--nnodes={nodes}", f"--nproc-per-node={ranks_per_node}", "--max-restarts=0", "--rdzv-backend=c10d",
        '--rdzv-id="$SLURM_JOB_ID"', '--rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"', *target,
    ]  # fmt: skip
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options), "set -euo pipefail"]
    lines += [_TRAP.format(python=interpreter), *setup]
    lines += [f"export {variable}={shlex.quote(value)}" for variable, value in variables.items()]
    return "\n".join([*lines, _RUN.format(cpus=cpus, command=" ".join(command))])


_TRAP = """
# Slurm's word that the time is nearly up; without a trap it would end the job. It is kept until the training is under
# way, and then passed on by a step beside it, on each node to each rank when that listens.
step="" warned="" teller=""
warn() {{
  warned=yes
  if [ -n "$step" ] && [ -z "$teller" ]; then
    srun --overlap --quiet --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --cpus-per-task=1 \\
      {python} -m kit.ranks.batch_warning &
    teller=$!
    disown
  fi
}}
trap warn USR2
"""
_RUN = """
# Slurm names no master: take the first host, and a port that another job will hardly have.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export MASTER_ADDR MASTER_PORT

# One torchrun on each node, through srun: this script itself runs on the first node only. Whoever signals the whole
# step with USR2 would end torchrun: it is ignored by whoever does not ask for it.
srun --ntasks-per-node=1 --cpus-per-task={cpus} --kill-on-bad-exit=1 \\
  bash -c 'trap "" USR2; exec "$@"' bash \\
  {command} &
step=$!
[ -z "$warned" ] || warn

# A trapped signal ends `wait` early: ask again, until the answer is that of the training, which is the job's.
while kill -0 "$step" 2>/dev/null; do
  wait "$step" || true
done
status=0
wait "$step" || status=$?
[ -z "$teller" ] || kill -KILL "$teller" 2>/dev/null || true # without a word in the output
exit "$status"
"""


def _target(training: Callable[..., Any] | str | Path, args: tuple[Any, ...]) -> tuple[str, list[str]]:
    """The function as text for the environment, "" for a script, and what torchrun runs."""
    if not callable(training):
        return "", [shlex.quote(str(training)), *(shlex.quote(str(argument)) for argument in args)]
    wire.by_value(training)
    payload = base64.b64encode(zlib.compress(cloudpickle.dumps((training, args)))).decode()
    if len(payload) > _MOST_BYTES:
        raise ValueError(
            f"the function and its arguments take {len(payload)} bytes; expected at most {_MOST_BYTES}, since they "
            "travel in the batch file. Load data and weights inside the function, from files that the nodes see."
        )
    return payload, ["-m", "kit.ranks.batch_entry"]


def _check(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; expected at least 1")


def _job_name(name: str, training: Callable[..., Any] | str | Path) -> str:
    found = name or (training.__name__ if callable(training) else Path(training).stem)
    if name and not _NAME.fullmatch(name):
        raise ValueError(f"name is {name!r}; expected letters, digits, dots, dashes and underscores")
    return found if _NAME.fullmatch(found) else "training"
