"""Settings of ipyparallel's launchers for each kind of cluster, and how their jobs fare."""

import contextlib
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from kit.ranks.cluster_options import ClusterOptions

LAUNCH_LOG = "launch.log"  # in the folder of the cluster
_ASK_SECONDS = 1.0
_LOG_LINES = 12
# Slurm's states of a job that nothing will run again (squeue(1) of 22.05; LAUNCH_FAILED and RECONFIG_FAIL came later).
# Not among them: REVOKED, whose job another cluster of a federation runs, and what passes or can be released
# (COMPLETING, SIGNALING, STAGE_OUT, RESIZING, SUSPENDED, STOPPED, REQUEUED, REQUEUE_FED, REQUEUE_HOLD, RESV_DEL_HOLD,
# SPECIAL_EXIT).
_ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "TIMEOUT",
)  # fmt: skip
_UNKNOWN_JOB = "Invalid job id"


def has_ended(state: str) -> bool:
    """Whether a Slurm job in this state is over: `state` as squeue and scontrol have it, "" when they know no such job.

    A state that this version does not know is taken for one that passes.
    """
    return not state or state.split()[0] in _ENDED


def make_folder(options: ClusterOptions) -> str:
    """A new folder for the files of a cluster; under the home folder when other machines must see it."""
    parent: Path | None = Path(options.folder).expanduser() if options.folder else None
    if parent is None and options.engine != "ipyparallel":
        parent = Path.home() / ".cache" / "static-graph-kit"
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    return tempfile.mkdtemp(prefix="kit-cluster-", dir=parent)


def cluster_config(options: ClusterOptions) -> Any:
    """The traitlets configuration of a Cluster."""
    from traitlets.config import Config

    config = Config()
    if options.engine == "slurm":
        config.SlurmEngineSetLauncher.batch_template = slurm_template(options)
    elif options.engine == "ssh":
        config.SSHEngineSetLauncher.engines = dict(options.hosts)
        config.SSHLauncher.ssh_args = list(options.ssh_args)
        config.SSHLauncher.scp_args = list(options.ssh_args)
        # The key travels in the environment. On a shared folder scp would write the file onto itself and empty it.
        config.SSHEngineLauncher.to_send = []
        config.SSHLauncher.remote_python = options.remote_python or sys.executable
    elif options.engine == "mpi":
        config.MPILauncher.mpi_cmd = [options.mpi_command]
        config.MPILauncher.mpi_args = list(options.mpi_args)
    return config


def engine_launcher(options: ClusterOptions) -> Any:
    """The launcher of the engines, by ipyparallel's short name or as a class."""
    if options.engine != "mpi":
        return "local" if options.engine == "ipyparallel" else options.engine
    launcher: Any = import_module("ipyparallel.cluster.launcher").MPIEngineSetLauncher

    class PlainMPIEngineSetLauncher(launcher):  # type: ignore[misc]  # ipyparallel has no types
        """Starts engines with mpiexec but without `--mpi`, which would need mpi4py; ranks do not speak MPI."""

        @property
        def program(self) -> list[str]:
            return list(self.engine_cmd)

    return PlainMPIEngineSetLauncher


def slurm_template(options: ClusterOptions) -> str:
    """The batch script of the engines, one task each; ipyparallel fills in the words in braces.

    An engine that ends takes no other along: neither it nor a lost node ends the job.
    """
    asked = {
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "time": options.time_limit,
    }
    lines = [f"--{name}={value}" for name, value in asked.items() if value]
    lines += options.sbatch
    return "\n".join(
        [
            "#!/bin/bash",
            "#SBATCH --export=ALL",
            "#SBATCH --job-name=kit-ranks",
            "#SBATCH --ntasks={n}",
            "#SBATCH --no-kill",
            "#SBATCH --open-mode=append",
            "#SBATCH --output={output_file}",
            *(f"#SBATCH {line}".replace("{", "{{").replace("}", "}}") for line in lines),
            # srun does not take over --cpus-per-task from sbatch since Slurm 22.05
            "exec srun --no-kill --kill-on-bad-exit=0 --wait=0 "
            "${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}} {program_and_args}",
            "",
        ]
    )


class Jobs:
    """The sets of engines of a cluster: processes of this machine, or jobs in a queue."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._asked_at = 0.0
        self._states: dict[str, str] = {}

    def trouble(self) -> str:
        """A sentence when engines that are waited for have ended; "" while there is hope."""
        ended = [engines for engines in self._cluster.engines.values() if engines.state == "after"]
        if ended:
            return f"the engines have ended instead of starting ({ended[-1].stop_data})"
        for job, state in self._ask().items():
            if has_ended(state):
                return f"Slurm job {job} of the engines has ended ({state or 'it left the queue'})"
        return ""

    def waiting(self) -> str:
        """What jobs wait for, as in "; Slurm job 7 is PENDING (Resources)"."""
        return "".join(f"; Slurm job {job} is {state}" for job, state in self._ask().items() if state)

    def log_tail(self) -> str:
        """The last lines that the launcher and the newest engines wrote, with a heading; "" when there are none."""
        engines = list(self._cluster.engines.values())
        logs = [Path(LAUNCH_LOG), *([Path(engines[-1].output_file)] if engines and engines[-1].output_file else [])]
        lines: list[str] = []
        for log in logs:
            with contextlib.suppress(OSError):  # nothing was started yet
                lines += log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "\nWhat was said there:\n" + "\n".join(lines) if lines else ""

    def cancel(self) -> None:
        """Cancel the jobs that have not ended; ipyparallel would give up at the first that has."""
        for job in self._numbers():
            subprocess.run(["scancel", job], capture_output=True, check=False)

    def await_end(self, seconds: float) -> None:
        """Wait until cancelled jobs have left the queue."""
        deadline = time.monotonic() + seconds
        while self._states and time.monotonic() < deadline:
            self._asked_at = 0.0
            if all(map(has_ended, self._ask().values())):
                return
            time.sleep(0.1)

    def _numbers(self) -> set[str]:
        return {engines.job_id for engines in self._cluster.engines.values() if _is_slurm(engines)}

    def _ask(self) -> dict[str, str]:
        """State of every Slurm job, "" when it is not in the queue; asks once a second."""
        now = time.monotonic()
        if now - self._asked_at < _ASK_SECONDS:
            return self._states
        self._asked_at = now
        for job in self._numbers() | set(self._states):
            asked = subprocess.run(
                ["squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T %r"],
                capture_output=True,
                text=True,
                check=False,
            )
            if asked.returncode and _UNKNOWN_JOB not in asked.stderr:
                continue  # a controller too busy to answer says nothing about the job
            state, _, why = asked.stdout.strip().partition(" ")
            self._states[job] = f"{state} ({why})" if why not in ("", "None") else state
        return self._states


def _is_slurm(engines: Any) -> bool:
    return type(engines).__name__.startswith("Slurm") and bool(engines.job_id)
