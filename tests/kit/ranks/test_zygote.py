"""The fork server ends with its controller, even while it imports torch."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

STARTS_ONE = """
import time
from kit.ranks import forkserver
print(forkserver.server().pid, flush=True)
time.sleep(60)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("wait", [0.5, 1.0])
def test_it_is_gone_at_once_when_the_controller_is_killed_while_it_imports_torch(root: Path, wait: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_ONE], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(root)}
    ) as controller:
        assert controller.stdout is not None
        server = int(controller.stdout.readline())
        time.sleep(wait)
        assert is_alive(server)
        controller.kill()
        begun = time.monotonic()
        while is_alive(server) and time.monotonic() - begun < 5:
            time.sleep(0.01)
        assert time.monotonic() - begun < 1.0
