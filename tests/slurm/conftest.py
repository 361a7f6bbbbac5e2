"""A Slurm of one node for tests: munged, slurmctld and slurmd on the loopback address, all files in one folder.

Debian's `slurm-wlm` and `munge`, as root, without cgroups. Without them the tests are skipped, or fail when
KIT_REQUIRE_SLURM is set.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.ranks.cluster_launchers import has_ended

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scontrol", "scancel", "srun")
CONF = """
ClusterName=one
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={d}/run/munge.sock
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/linux
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={d}/log/jobcomp.txt
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmctldPidFile={d}/run/slurmctld.pid
SlurmdPidFile={d}/run/slurmd.pid
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/spool
SlurmctldLogFile={d}/log/slurmctld.log
SlurmdLogFile={d}/log/slurmd.log
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
KillWait=5
OverTimeLimit=1
MinJobAge=300
SchedulerParameters=sched_interval=1
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmdParameters=config_overrides
NodeName=localhost NodeAddr=127.0.0.1 CPUs=8 RealMemory=2048 State=UNKNOWN
PartitionName=debug Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


class Slurm:
    """The running daemons and their folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemons: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self) -> None:
        for name in ("run", "state", "spool", "log"):
            (self.folder / name).mkdir(mode=0o700)
        controller_port, node_port = free_ports(2)
        settings = {"d": self.folder, "controller_port": controller_port, "node_port": node_port}
        (self.folder / "slurm.conf").write_text(CONF.format(**settings))
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=autodetect\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self._run_munge(key)
        self._daemon("slurmctld", "-D", "-c")
        self._daemon("slurmd", "-D", "-N", "localhost")
        self._await_idle()

    def _run_munge(self, key: Path) -> None:
        d = self.folder
        self._daemon(
            "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={d}/run/munge.sock",
            f"--pid-file={d}/run/munged.pid", f"--log-file={d}/log/munged.log", f"--seed-file={d}/run/munge.seed",
        )  # fmt: skip
        deadline = time.monotonic() + 10
        while not (d / "run" / "munge.sock").exists():
            assert time.monotonic() < deadline, self.why("munged did not start")
            time.sleep(0.05)

    def _daemon(self, *command: str) -> None:
        log = (self.folder / "log" / f"{command[0]}.out").open("wb")
        with log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        self._daemons.append((command[0], process))

    def _await_idle(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            seen = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True, check=False).stdout
            if seen.strip() == "idle":
                return
            ended = [name for name, process in self._daemons if process.poll() is not None]
            assert not ended, self.why(f"{', '.join(ended)} ended")
            assert time.monotonic() < deadline, self.why(f"the node is {seen.strip() or 'unknown'}, not idle")
            time.sleep(0.2)

    def why(self, what: str) -> str:
        logs = sorted((self.folder / "log").glob("*.*"))
        tails = [f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:]) for log in logs]
        return "\n".join([what, *tails])

    def job(self, number: str) -> dict[str, str]:
        """Fields of a job as `scontrol show job` has them."""
        shown = subprocess.run(
            ["scontrol", "show", "job", "-o", number], capture_output=True, text=True, check=True
        ).stdout
        return dict(field.split("=", 1) for field in shown.split() if "=" in field)

    def jobs(self) -> list[str]:
        """Numbers of the jobs that have not ended."""
        seen = subprocess.run(["squeue", "-h", "-o", "%i"], capture_output=True, text=True, check=True).stdout
        return seen.split()

    def await_end(self, number: str, *, seconds: float) -> str:
        """The state in which a job ends."""
        deadline = time.monotonic() + seconds
        while not has_ended(state := self.job(number)["JobState"]):
            assert time.monotonic() < deadline, self.why(f"job {number} is {state} after {seconds} s")
            time.sleep(0.2)
        return state

    def stop(self) -> None:
        for number in self.jobs():
            subprocess.run(["scancel", number], check=False)
            self.await_end(number, seconds=20)
        for _, process in reversed(self._daemons):
            process.terminate()
        for _, process in self._daemons:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm whose only node is this machine; its commands work in this process's environment."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or os.getuid() != 0:
        why = f"Slurm needs {', '.join(missing)} (slurm-wlm and munge)" if missing else "the test Slurm runs as root"
        if os.environ.get("KIT_REQUIRE_SLURM"):
            pytest.fail(why)
        pytest.skip(why)
    one = Slurm(tmp_path_factory.mktemp("slurm"))
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(one.folder / "slurm.conf")
    try:
        one.start()
        yield one
        one.stop()
    finally:
        for _, process in one._daemons:
            if process.poll() is None:
                process.kill()
                process.wait()
        os.environ.pop("SLURM_CONF")
        if before is not None:
            os.environ["SLURM_CONF"] = before
