"""Kill a Jupyter kernel with SIGKILL while its ranks do something, and count what outlives it.

What a kernel starts is told by an environment variable that everything below it inherits, so that nothing hides behind
another name or process group.
"""

import contextlib
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from jupyter_client.manager import KernelManager
from traitlets.config import Config

MARK = "KIT_BENCH_KERNEL"
GONE_WITHIN_SECONDS = 3.0

LAUNCH = "import kit; ranks = kit.launch(2, threads=1)"
# What the kernel is doing when it is killed: code that it runs to its end, code that it is in the middle of.
SITUATIONS = {
    "ranks are idle": (LAUNCH, "import time; time.sleep(60)"),
    "one waits in all_reduce, one loops": (
        LAUNCH,
        "ranks.execute('if rank == 0: dist.all_reduce(torch.ones(1))\\nelse:\\n    while True: pass')",
    ),
    "ranks wait for child processes": (
        LAUNCH,
        'ranks.execute(\'import subprocess; subprocess.run(["sleep", "60"])\')',
    ),
    "ranks are being started": ("import kit", "while True: kit.launch(2, threads=1).close()"),
    "ranks abort and rejoin": (
        LAUNCH,
        "while True:\n    try:\n        ranks.execute('if rank: raise ValueError\\ndist.all_reduce(torch.ones(1))')\n"
        "    except kit.RankError: pass",
    ),
}
PEER_SITUATION = (
    "import sys; sys.path[:0] = [{folder!r}]\nimport _ranks_peer\npeer = _ranks_peer.Peer(2); peer.join()",
    "peer.seconds_until_control(60)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """What one kill left: processes (and files in the temporary folder) still there after the time, seconds waited."""

    orphans: int
    files: int
    seconds: float


def kill_during(before: str, meanwhile: str, *, wait: float) -> Kill:
    """Run `before` in a fresh kernel, kill it `wait` seconds into `meanwhile`, and count what is left."""
    mark = secrets.token_hex(8)
    with tempfile.TemporaryDirectory() as folder, _kernel(mark, folder) as (manager, client):
        reply = client.execute_interactive(before, timeout=120)
        if reply["content"]["status"] != "ok":
            raise RuntimeError(f"the kernel could not be prepared: {reply['content']['evalue']}")
        client.execute(meanwhile)
        time.sleep(wait)
        begun = time.monotonic()
        os.kill(manager.provisioner.pid, signal.SIGKILL)
        while (left := _marked(mark)) and time.monotonic() - begun < GONE_WITHIN_SECONDS:
            time.sleep(0.02)
        seconds = time.monotonic() - begun
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return Kill(orphans=len(left), files=len(list(Path(folder).iterdir())), seconds=seconds)


@contextlib.contextmanager
def _kernel(mark: str, folder: str) -> Iterator[tuple[KernelManager, object]]:
    manager = KernelManager(kernel_name="python3", config=Config({"KernelManager": {"transport": "ipc"}}))
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    manager.start_kernel(
        env={**os.environ, MARK: mark, "TMPDIR": folder, "PYTHONPATH": path}, extra_arguments=["--log-level=50"]
    )
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(psutil.Error):
            if process.info["status"] != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(process)
    return found
