"""Ranks of the kit beside ipyparallel: start, calls, tensors, faults, kills, growth. Run by `make bench NAME=ranks`.

Both in the same run, taking turns, medians. Takes about six minutes on two cores.
"""

import itertools
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import _ranks_kills as kills
import _ranks_peer as peer
import psutil
import torch
from _figures import Figure, against, conditions, finish, say, seconds_of

import kit
from kit.ranks import RankError, Ranks, forkserver

WORLD_SIZE = 2
WORKS = "dist.all_reduce(torch.ones(1))"
BROKEN = f"if rank == world_size - 1:\n    raise ValueError('boom')\n{WORKS}"
TENSOR = torch.ones(2_500_000)  # 10 MB
COLD_ROUNDS, WARM_ROUNDS = 5, 5
CALL_ROUNDS, CALLS = 5, 100
TENSOR_ROUNDS, TENSORS = 5, 6
FAULTS = 20
PEER_LIMIT_SECONDS = 20.0
KILLS, PEER_KILLS = 20, 2
FIRST_CYCLES, CYCLES, PARTS = 100, 50, 5  # torch's flight recorder is full, and grows no more, after 100
MEGABYTES_ALLOWED = 0.5  # allocator noise

WAIT = "print('up', flush=True)\ninput()\n"
OURS_COLD = f"import kit\nranks = kit.launch({WORLD_SIZE})\nranks.execute({WORKS!r})\n{WAIT}"
PEER_COLD = f"import _ranks_peer\npeer = _ranks_peer.Peer({WORLD_SIZE})\npeer.join()\n{WAIT}peer.close()"
PEER_COLD_AS_IT_COMES = PEER_COLD.replace("peer = ", "_ranks_peer.SETTINGS = _ranks_peer.AS_IT_COMES\npeer = ")

MEANINGS = {
    "start cold": "from starting a fresh Python to a finished all_reduce on 2 new ranks; files are in the page cache",
    "start warm": (
        "the same from a Python that has closed such a group before: all is imported there, and the kit keeps a "
        "process with torch; ipyparallel has no such thing, so its new engines import torch again"
    ),
    "new group": "a process group made anew in ranks that stay, and an all_reduce; kit: right after an abort",
    "call": (
        "a function that returns a number, on all ranks, results back; the kit sends a function that is only code "
        "once and then its number; 'sent whole': one that names a value of the script, packed and sent in every call"
    ),
    "tensor": "10 MB of float32; ipyparallel: the faster of a torch tensor and a numpy array, push and pull blocking",
    "raise to control": "the whole cell: the last rank raises at once, the other waits in all_reduce",
    "peer settings": str({name: value for name, value in peer.SETTINGS.items() if name != "log_level"}),
}


def trivial() -> int:
    """What a trivial call runs."""
    return 1


NUMBER = 1


def trivial_with_a_value() -> int:
    """The same with a value that may have changed since the last call."""
    return NUMBER


def seconds_from_nothing(code: str) -> float:
    """From starting a fresh Python until it says that its group works."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here.parents[1]), str(here)])
    begun = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        said = process.stdout.readline()
        seconds = time.perf_counter() - begun
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.read()
    if said != "up\n":
        raise RuntimeError(f"the group did not start: {said!r}")
    return seconds


def starts() -> dict[str, Figure]:
    """Cold and warm starts, ours and theirs in turn."""
    say("starts ...")
    seconds: dict[str, list[float]] = {OURS_COLD: [], PEER_COLD: [], PEER_COLD_AS_IT_COMES: []}
    for _, code in itertools.product(range(COLD_ROUNDS), seconds):
        seconds[code].append(seconds_from_nothing(code))
    ours, best, as_it_comes = seconds.values()
    cold = {
        "start cold": against(ours, best, peer=peer.NAME, times=2),
        "start cold, peer's default settings": against(ours, as_it_comes, peer=peer.NAME, times=0),
    }

    def launch() -> None:
        opened.append(kit.launch(WORLD_SIZE))
        opened[-1].execute(WORKS)

    def start_peer() -> None:
        opened.append(peer.Peer(WORLD_SIZE))
        opened[-1].join()

    opened: list[Any] = []
    warm: dict[Any, list[float]] = {launch: [], start_peer: []}
    for turn in range(WARM_ROUNDS + 1):
        for start, taken in warm.items():
            took = seconds_of(start, 1)
            opened.pop().close()
            if turn:  # the first is the one that warms
                taken += took
    return {**cold, "start warm": against(*warm.values(), peer=peer.NAME, times=30, below=1)}


def calls(ranks: Ranks, theirs: peer.Peer) -> dict[str, Figure]:
    """Trivial calls; theirs in the faster of two ways."""
    say("calls ...")
    ways = {
        "ours": lambda: ranks.run(trivial),
        "whole": lambda: ranks.run(trivial_with_a_value),
        "view": lambda: theirs.all.apply_sync(trivial),
        "engines": lambda: [r.get() for r in [theirs.client[k].apply_async(trivial) for k in range(WORLD_SIZE)]],
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _, (name, way) in itertools.product(range(CALL_ROUNDS), ways.items()):
        way()
        seconds[name] += seconds_of(way, CALLS)
    best = min(seconds["view"], seconds["engines"], key=statistics.median)
    return {
        "call on all ranks": against(seconds["ours"], best, peer=peer.NAME, times=40),
        "call on all ranks, function sent whole": against(seconds["whole"], best, peer=peer.NAME, times=0),
    }


def tensors(ranks: Ranks, theirs: peer.Peer) -> dict[str, Figure]:
    """10 MB to all ranks and from all ranks."""
    say("tensors ...")
    ways = {
        ("to", "ours"): lambda: ranks.push(sent=TENSOR),
        ("from", "ours"): lambda: ranks.pull("sent"),
        ("to", "torch"): lambda: theirs.all.push({"sent": TENSOR}, block=True),
        ("from", "torch"): lambda: theirs.all.pull("sent", block=True),
        ("to", "numpy"): lambda: theirs.all.push({"array": TENSOR.numpy()}, block=True),
        ("from", "numpy"): lambda: theirs.all.pull("array", block=True),
    }
    seconds: dict[tuple[str, str], list[float]] = {name: [] for name in ways}
    for _, (name, way) in itertools.product(range(TENSOR_ROUNDS), ways.items()):
        way()
        seconds[name] += seconds_of(way, TENSORS)
    found = {}
    for direction in ("to", "from"):
        ours, alike, array = (seconds[direction, way] for way in ("ours", "torch", "numpy"))
        best = min(alike, array, key=statistics.median)
        name = f"10 MB tensor {direction} both ranks"
        found[name] = against(ours, best, peer=peer.NAME, times=3)
        found[f"{name}, both as torch tensors"] = against(ours, alike, peer=peer.NAME, times=0)
    return found


def break_and_rejoin(ranks: Ranks) -> tuple[float, float]:
    """Seconds until control is back, and until the next collective works after that."""
    begun = time.perf_counter()
    try:
        ranks.execute(BROKEN)
    except RankError as error:
        control = time.perf_counter()
        if error.rank != WORLD_SIZE - 1:
            raise
    else:
        raise RuntimeError("a rank raised and no error came")
    ranks.execute(WORKS)
    return control - begun, time.perf_counter() - control


def faults(ranks: Ranks, theirs: peer.Peer) -> dict[str, Figure]:
    """A rank raises while the other waits; the local engine, the one over ipyparallel, and ipyparallel alone."""
    say("faults ...")
    local = [break_and_rejoin(ranks) for _ in range(FAULTS)]
    again = seconds_of(theirs.join, FAULTS)
    alone = theirs.seconds_until_control(PEER_LIMIT_SECONDS)
    with kit.launch(WORLD_SIZE, engine="ipyparallel") as far:
        cluster = [break_and_rejoin(far) for _ in range(FAULTS)]
    control = statistics.median(seconds for seconds, _ in local)
    far_control = statistics.median(seconds for seconds, _ in cluster)
    never = f"{peer.NAME} alone, stopped after {PEER_LIMIT_SECONDS:g} s without an answer"
    return {
        "raise to control, local engine, gloo": Figure(
            value=control, unit="s", bar="under 0.1 s", holds=control < 0.1,
            peer=never if alone is None else peer.NAME, peer_value=alone,
        ),
        "raise to control, engine over ipyparallel": Figure(
            value=far_control, unit="s", bar="under 4 s", holds=far_control < 4,
        ),
        "new group in ranks that stay": against([s for _, s in local], again, peer=peer.NAME, times=0),
    }  # fmt: skip


def kernel_kills() -> dict[str, Figure]:
    """Orphans after SIGKILL of Jupyter kernels in five situations."""
    say("kernel kills ...")
    ours = []
    for number in range(KILLS):
        situation = list(kills.SITUATIONS)[number % len(kills.SITUATIONS)]
        ours.append(kills.kill_during(*kills.SITUATIONS[situation], wait=0.3 + 0.05 * number))
        say(f"  {situation}: {ours[-1].orphans} left, all gone after {ours[-1].seconds:.2f} s")
    before, meanwhile = kills.PEER_SITUATION
    before = before.format(folder=str(Path(__file__).parent))
    theirs = [kills.kill_during(before, meanwhile, wait=1.0) for _ in range(PEER_KILLS)]
    orphans, files = (sum(getattr(kill, name) for kill in ours) for name in ("orphans", "files"))
    left = sum(kill.orphans for kill in theirs)
    return {
        f"orphans of {KILLS} killed kernels": Figure(
            value=orphans, unit="processes", bar="0 (3 s after the kill)", holds=orphans == 0,
            peer=f"{peer.NAME}, {PEER_KILLS} kills", peer_value=left,
        ),
        f"files left by {KILLS} killed kernels": Figure(value=files, unit="files", bar="0", holds=files == 0),
        "longest until all were gone": Figure(
            value=max(kill.seconds for kill in ours), unit="s", bar="under 3 s",
            holds=max(kill.seconds for kill in ours) < kills.GONE_WITHIN_SECONDS,
        ),
    }  # fmt: skip


def growth(ranks: Ranks) -> dict[str, Figure]:
    """What the notebook's process, the fork server and the ranks hold more after many aborts and rejoins."""
    say("abort and rejoin ...")
    pids = [os.getpid(), forkserver.server().pid, *ranks.pids.values()]
    processes = [psutil.Process(pid) for pid in pids]

    def held() -> dict[str, list[float]]:
        return {
            "threads": [process.num_threads() for process in processes],
            "descriptors": [process.num_fds() for process in processes],
            "MB": [process.memory_info().rss / 1e6 for process in processes],
        }

    for _ in range(FIRST_CYCLES):
        break_and_rejoin(ranks)
    samples = [held()]
    for _ in range(PARTS):
        for _ in range(CYCLES // PARTS):
            break_and_rejoin(ranks)
        samples.append(held())
    found = {}
    for what, allowed in (("threads", 0.0), ("descriptors", 0.0), ("MB", MEGABYTES_ALLOWED)):
        steps = [
            [later[what][k] - before[what][k] for before, later in itertools.pairwise(samples)]
            for k in range(len(processes))
        ]
        # Memory comes in steps of the allocator, once each; what leaks comes in every part.
        grown = max(PARTS * statistics.median(one) if what == "MB" else sum(one) for one in steps)
        found[f"growth of {what} over {CYCLES} cycles"] = Figure(
            value=grown, unit=f"{what}, worst process", bar=f"at most {allowed:g}", holds=grown <= allowed
        )
    return found


def main() -> None:
    """Measure all of it."""
    under = conditions(
        ["torch", "ipyparallel", "ipykernel"], world_size=WORLD_SIZE, backend="gloo", meanings=MEANINGS,
        repeats={"cold": COLD_ROUNDS, "warm": WARM_ROUNDS, "calls": CALL_ROUNDS * CALLS,
                 "tensors": TENSOR_ROUNDS * TENSORS, "faults": FAULTS},
    )  # fmt: skip
    figures = starts()
    with kit.launch(WORLD_SIZE) as ranks, peer.open_peer(WORLD_SIZE) as theirs:
        figures |= calls(ranks, theirs) | tensors(ranks, theirs) | faults(ranks, theirs)
    with kit.launch(WORLD_SIZE) as ranks:
        figures |= growth(ranks)
    kit.shutdown()
    figures |= kernel_kills()
    finish("ranks", under, figures)


if __name__ == "__main__":
    main()
