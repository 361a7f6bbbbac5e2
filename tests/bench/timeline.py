"""How much CPU and memory a large trace costs, beside HolisticTraceAnalysis on the same files in the same run.

    python tests/bench/timeline.py [--out FILE]

A real capture (FSDP2 on H200, not part of the repository) is grown to 112 and 508 MB. Each reading is a process of
its own: load, split of time, overlap. Sides take turns, so that a busy machine hurts both; figures are medians.
Seconds are CPU seconds, because wall time measures the neighbours: of the work (what was promised), and of the whole
process with the start of Python and all imports.
`KIT_SHARED` names the folder of captures, `KIT_HTA_PYTHON` a Python that has HolisticTraceAnalysis when this one has
not.
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _figures import Figure, conditions, finish, say
from _timeline_grow import grow

SHARED = Path(os.environ.get("KIT_SHARED", Path(__file__).parents[3] / "shared")) / "data"
SOURCE = SHARED / "h200" / "gpt163m_fsdp_eager_rank0.json.gz"
SMALL_MB, LARGE_MB = 112, 508
ROUNDS, HTA_ROUNDS, LARGE_ROUNDS = 5, 5, 5
WHOLE_TIMES, CHUNKED_TIMES = 15.0, 10.0
WHOLE_PEAK, CHUNKED_PEAK = 3.0, 1.7
GROWTH = 1.15
Runs = dict[str, list[dict[str, Any]]]

MEANINGS = {
    "CPU": "process CPU seconds of load, split of time and overlap; ours without the cache",
    "CPU with imports": "the same from the start of Python",
    "peak": "VmHWM of that process over the bytes of the file",
    # On a virtual machine equally many page faults took 0.1 to 2 s of system time.
    "CPU for each MB": "of the work alone (no imports), the least of the runs, 508 MB over 112 MB",
    "cached": "the same file read a second time with the cache on, beside the first reading",
    "off the golden value": "communication of the grown trace less the source's golden value times the copies",
}


def hta_python() -> str | None:
    """A Python that has HolisticTraceAnalysis."""
    if importlib.util.find_spec("hta") is not None:
        return sys.executable
    return os.environ.get("KIT_HTA_PYTHON")


def once(python: str, who: str, file: Path) -> dict[str, Any]:
    """One reading in a process of its own."""
    done = subprocess.run(
        [python, str(Path(__file__).with_name("_timeline_once.py")), who, str(file)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{who} on {file.name} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    say(
        say(
            f"  {who:<8} {file.parent.name}: {found['cpu']:.2f} s CPU ({found['work']:.2f} of work), "
            f"peak {found['peak'] / file.stat().st_size:.2f}x"
        )
    )
    return found


def median(runs: list[dict[str, Any]], key: str) -> float:
    """Of one measured quantity."""
    return statistics.median(run[key] for run in runs)


def warm(file: Path) -> None:
    """Have the file on disk and in memory: else the first reader pays for that."""
    os.sync()
    with file.open("rb") as opened:
        while opened.read(1 << 24):
            pass


def measure(small: Path, large: Path, hta: str | None) -> tuple[Runs, Runs]:
    """All readings, sides taking turns."""
    for file in (small, large):
        warm(file)
    of_small: Runs = {"whole": [], "chunked": [], "hta": [], "cached": []}
    of_large: Runs = {"whole": [], "chunked": []}
    for number in range(ROUNDS):
        # Who comes after the peer pays for memory that a virtual machine gave back when the peer ended.
        ours = ("whole", "chunked") if number % 2 else ("chunked", "whole")
        for who in ours:
            of_small[who].append(once(sys.executable, who, small))
        if hta is not None and number < HTA_ROUNDS:
            of_small["hta"].append(once(hta, "hta", small))
        if number < LARGE_ROUNDS:
            for who in ours:
                of_large[who].append(once(sys.executable, who, large))
    of_small["cached"] = [once(sys.executable, "cached", small) for _ in range(3)]
    return of_small, of_large


def beside(runs: Runs, who: str, key: str, times: float | None) -> Figure:
    """Seconds of CPU of one side, and how many times less than the peer's; `times` is what was promised."""
    value = median(runs[who], key)
    if not runs["hta"]:
        return Figure(value=value, unit="s")
    other = median(runs["hta"], key)
    return Figure(
        value=value, unit="s", peer="HolisticTraceAnalysis", peer_value=other, ratio=other / value,
        bar="" if times is None else f"at least {times:g}x less",
        holds=None if times is None else other / value >= times,
    )  # fmt: skip


def figures(small: Path, large: Path, hta: str | None) -> dict[str, Figure]:
    """What the readings say, against what was promised."""
    of_small, of_large = measure(small, large, hta)
    size = small.stat().st_size
    found: dict[str, Figure] = {}
    for who, times, most in (("whole", WHOLE_TIMES, WHOLE_PEAK), ("chunked", CHUNKED_TIMES, CHUNKED_PEAK)):
        peak, other = median(of_small[who], "peak") / size, bool(of_small["hta"])
        found[f"{who}, {SMALL_MB} MB, CPU"] = beside(of_small, who, "work", times)
        found[f"{who}, {SMALL_MB} MB, CPU with imports"] = beside(of_small, who, "cpu", None)
        found[f"{who}, {SMALL_MB} MB, peak"] = Figure(
            value=peak, unit="x file", bar=f"at most {most:g}", holds=peak <= most,
            peer="HolisticTraceAnalysis" if other else "",
            peer_value=median(of_small["hta"], "peak") / size if other else None,
        )  # fmt: skip
        per_mb = [min(run["work"] for run in runs[who]) / file.stat().st_size for runs, file in
                  ((of_small, small), (of_large, large))]  # fmt: skip
        found[f"{who}, CPU for each MB, {LARGE_MB} over {SMALL_MB} MB"] = Figure(
            value=per_mb[1] / per_mb[0], unit="x", bar=f"at most {GROWTH:g}", holds=per_mb[1] / per_mb[0] <= GROWTH
        )
        peak = median(of_large[who], "peak") / large.stat().st_size
        found[f"{who}, {LARGE_MB} MB, peak"] = Figure(
            value=peak, unit="x file", bar=f"at most {most:g}", holds=peak <= most
        )
    first, *again = of_small["cached"]
    found[f"cached, {SMALL_MB} MB, CPU of the work"] = Figure(
        value=median(again, "work"), unit="s", peer="first reading, kept", peer_value=first["work"],
        ratio=first["work"] / median(again, "work"),
    )  # fmt: skip
    golden = json.loads((SHARED / "h200" / "golden.json").read_text())["independent"][SOURCE.name]
    copies = round(of_small["whole"][0]["communication_ns"] / golden["comm_ns"])
    off = max(abs(run["communication_ns"] - copies * golden["comm_ns"]) for who in ("whole", "chunked", "cached")
              for run in of_small[who])  # fmt: skip
    found["communication off the golden value"] = Figure(value=off, unit="ns", bar="exactly 0", holds=off == 0)
    return found


def main() -> None:
    """Measure all of it."""
    if not SOURCE.exists():
        say(f"no capture at {SOURCE}; set KIT_SHARED to the folder that holds data/h200")
        sys.exit(0)
    hta = hta_python()
    if hta is None:
        say("HolisticTraceAnalysis is not here (pip install HolisticTraceAnalysis); ours alone is measured")
    with tempfile.TemporaryDirectory(prefix="kit-bench-") as folder:
        os.environ["KIT_CACHE"] = str(Path(folder) / "cache")
        small, large = Path(folder) / "small" / "rank0.json", Path(folder) / "large" / "rank0.json"
        for file, megabytes in ((small, SMALL_MB), (large, LARGE_MB)):
            file.parent.mkdir()
            say(f"{file.parent.name}: {grow(SOURCE, file, megabytes=megabytes) / 1e6:.0f} MB")
        peers = {} if hta is None else {"hta": _version(hta)}
        under = conditions(["msgspec", "numpy"], peers=peers, meanings=MEANINGS, source=SOURCE.name,
                           bytes={"small": small.stat().st_size, "large": large.stat().st_size},
                           repeats={"ours": ROUNDS, "hta": HTA_ROUNDS, "large": LARGE_ROUNDS})  # fmt: skip
        found = figures(small, large, hta)
    finish("timeline", under, found)


def _version(python: str) -> str:
    code = "from importlib.metadata import version; print(version('HolisticTraceAnalysis'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
