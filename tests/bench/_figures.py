"""Figures of a benchmark: what was measured, beside whom, against which bar, and under which conditions.

A benchmark is a script `tests/bench/NAME.py` that measures the kit and its peer in the same run and ends with one line
of JSON (`finish`), so that a later run can be compared with an earlier one by a program.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value. `peer` is "" when nobody else was measured; `ratio` is how many times better ours is.

    `bar` is the text of what was promised, "" when nothing was; `holds` whether the value keeps it.
    """

    value: float
    unit: str
    bar: str = ""
    holds: bool | None = None
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None

    def __str__(self) -> str:
        against = "" if self.peer_value is None else f"   {self.peer} {self.peer_value:.4g} {self.unit}"
        times = "" if self.ratio is None else f", {self.ratio:.3g}x"
        verdict = f"   {'holds' if self.holds else 'FAILS'}: {self.bar}" if self.bar else ""
        return f"{self.value:.4g} {self.unit}{against}{times}{verdict}"


def against(ours: Sequence[float], theirs: Sequence[float], *, peer: str, times: float, below: float = 0.0) -> Figure:
    """Medians in seconds; the bar is "at least `times` faster", and below `below` seconds when that is given.

    Without either there is no bar.
    """
    value, other = statistics.median(ours), statistics.median(theirs)
    parts = [f"at least {times:g}x faster"] if times else []
    parts += [f"under {below:g} s"] if below else []
    holds = other / value >= times and (not below or value < below)
    return Figure(
        value=value, unit="s", peer=peer, peer_value=other, ratio=other / value,
        bar=" and ".join(parts), holds=holds if parts else None,
    )  # fmt: skip


def seconds_of(call: Callable[[], object], repeats: int) -> list[float]:
    """How long each of some calls took."""
    found = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        found.append(time.perf_counter() - begun)
    return found


def say(text: str) -> None:
    """Tell the person where the benchmark is."""
    print(text, flush=True)


def conditions(packages: Sequence[str], **more: Any) -> dict[str, Any]:
    """Machine, versions, load and time, and what else the figures depend on."""
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),  # noqa: UP017 - the same on 3.11
        "cores": len(os.sched_getaffinity(0)),
        "processor": model[0].partition(":")[2].strip() if model else platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
        "load_1min_before": round(os.getloadavg()[0], 2),
        **more,
    }


def finish(bench: str, under: Mapping[str, Any], figures: Mapping[str, Figure]) -> None:
    """Print the figures for people, then the one line of JSON; with `--out FILE` keep it there too."""
    parser = argparse.ArgumentParser(prog=f"tests/bench/{bench}.py")
    parser.add_argument("--out", type=Path, default=None, help="also write the result to this file")
    chosen = parser.parse_args(sys.argv[1:])
    result = {
        "bench": bench,
        "conditions": {**under, "load_1min_after": round(os.getloadavg()[0], 2)},
        "figures": {name: asdict(figure) for name, figure in figures.items()},
    }
    for name, figure in figures.items():
        say(f"{name:<44} {figure}")
    if chosen.out is not None:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(result, indent=1) + "\n")
    say(json.dumps(result))
