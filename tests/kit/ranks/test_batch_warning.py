"""The warning of a batch file, on processes that play ranks of a job; tests/slurm has a real one."""

import os
import subprocess
import sys

from kit.ranks.batch_warning import warn

JOB = "kit-test"
ENDS_WHEN_WARNED = "import os, signal, time; signal.signal(signal.SIGUSR2, lambda *_: os._exit(3)); time.sleep(60)"
LISTENS_LATE = f"""
import signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {ENDS_WHEN_WARNED!r}])
time.sleep(0.6)
heard = []
signal.signal(signal.SIGUSR2, lambda *_: heard.append(1))
end = time.monotonic() + 10
while not heard and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.5)
print(len(heard), child.poll())
child.kill()
"""


def rank(code: str, *, job: str = JOB) -> subprocess.Popen[str]:
    environment = {**os.environ, "SLURM_JOB_ID": job, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)


def test_ranks_are_warned_once_each_when_they_listen_and_nobody_else_is() -> None:
    with rank(LISTENS_LATE) as first, rank(LISTENS_LATE) as second, rank(ENDS_WHEN_WARNED, job="another") as stranger:
        warn(JOB)
        assert first.communicate(timeout=20)[0] == "1 None\n"
        assert second.communicate(timeout=20)[0] == "1 None\n"
        assert stranger.poll() is None
        stranger.kill()
