"""The notebook is killed without warning: nothing of it may stay, on every engine alike."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

ENGINES = ("local", "ipyparallel")
_NOTEBOOK = """
import json, sys, threading
import psutil
from kit.ranks import engine
ranks = engine.launch(2, threads=1, engine={engine!r})
ranks.execute("import subprocess; child = subprocess.Popen(['sleep', '100']).pid")
of_ranks = [*ranks.pids.values(), *ranks.pull("child")]
everything = [process.pid for process in psutil.Process().children(recursive=True)]
threading.Timer(0.3, lambda: print(json.dumps([of_ranks, everything]), flush=True)).start()
ranks.execute({cell!r})
"""
_CELL = "if rank == 0: dist.all_reduce(torch.ones(1))\nelse:\n    while True: pass"
_RANK_SECONDS = 3.0
_CLUSTER_SECONDS = 15.0  # the controller of ipyparallel takes a while to stop


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if _is_alive(pid)]


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_when_the_kernel_is_killed_no_process_no_file_and_no_socket_is_left(
    engine_name: str, tmp_path: Path, root: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(tmp_path)}
    code = _NOTEBOOK.format(cell=_CELL, engine=engine_name)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment, cwd=tmp_path
    ) as notebook:
        assert notebook.stdout is not None
        try:
            of_ranks, everything = json.loads(notebook.stdout.readline())
            assert len(of_ranks) == 4
            assert set(of_ranks) < set(everything)
            assert alive(everything) == everything
        finally:
            notebook.send_signal(signal.SIGKILL)
        notebook.wait()
        begun = time.monotonic()
        while left := alive(of_ranks):
            assert time.monotonic() < begun + _RANK_SECONDS, f"ranks {left} are alive 3 s after the kernel was killed"
            time.sleep(0.02)
        seconds = _RANK_SECONDS if engine_name == "local" else _CLUSTER_SECONDS
        while alive(everything) or list(tmp_path.iterdir()):  # a socket goes with its process
            assert time.monotonic() < begun + seconds, f"{alive(everything)}, {list(tmp_path.iterdir())} are left"
            time.sleep(0.05)
