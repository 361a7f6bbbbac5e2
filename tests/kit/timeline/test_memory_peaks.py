"""Peaks of real profiles whose allocations are known, and of a trace by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from kit.archive import load, save
from kit.timeline.measures import measure
from kit.timeline.memory_counters import with_memory
from kit.timeline.memory_peaks import memory_peaks
from kit.timeline.merge import merge
from kit.timeline.origins import GraphOrigins, KernelOrigins, Origin
from kit.timeline.profile import profile_rank
from kit.timeline.read import read
from kit.timeline.record import Category

MEGABYTE = 1 << 20


class Wide(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat(8, 1) * 2  # 8 MB, and 8 MB more while it is doubled


def step(batch: torch.Tensor) -> None:
    small = batch + 1
    Wide()(small)
    del small


def test_the_peak_of_a_real_step_is_at_its_operator_module_and_line() -> None:
    batch = torch.ones(256, 1024)  # 1 MB, made before the profile: not counted
    timeline = profile_rank(step, [batch] * 3, warmup=1, active=2, memory=True)
    [row] = measure(timeline, "memory")
    assert (row.rank, row.device, row.first_bytes, row.last_bytes) == (0, "cpu", 0, 0)
    assert 0 <= row.peak_bytes - (1 + 8 + 8) * MEGABYTE < 100  # torch keeps a few bytes of its own
    assert (row.operator, row.module) == ("aten::mul", "Wide_0")
    assert row.line.endswith("test_memory_peaks.py(23): forward")
    # Both active steps are whole, from their first allocation: add, repeat (and its parts), mul in each.
    big = timeline.memory_changed_bytes[timeline.memory_changed_bytes >= MEGABYTE]
    assert (big == 8 * MEGABYTE).sum() == 4
    assert (big == MEGABYTE).sum() == 2
    assert timeline.memory_changed_bytes.sum() == 0
    first = timeline.start_ns[timeline.category == Category.ANNOTATION].min()
    assert timeline.memory_at_ns.min() > first


def test_without_memory_the_measure_says_how_to_record_it() -> None:
    found = measure(profile_rank(step, [torch.ones(2, 2)] * 2, warmup=1, active=1), "memory")
    assert (len(found), found.notes) == (
        0, ("no memory events in this timeline; record them with kit.profile(..., memory=True)",),
    )  # fmt: skip


def instant(ts: float, changed: int, total: int, *, tid: int = 1, device: int = -1) -> dict:
    args = {"Device Type": 0 if device < 0 else 1, "Device Id": device, "Bytes": changed, "Total Allocated": total}
    return {"ph": "i", "name": "[memory]", "pid": 1, "tid": tid, "ts": ts, "args": args}


def test_ranks_are_joined_and_survive_saving(span, write, tmp_path: Path) -> None:
    parts = []
    for rank in (1, 0):
        events = [
            span("cpu_op", "aten::mm", 0, 10), span("cpu_op", "aten::add", 20, 10, tid=2 + rank),
            instant(5.25, 100 + rank, 100 + rank), instant(21, 50, 150 + rank, tid=2 + rank), instant(40, -150, rank),
            instant(6, 7, 7, device=0),
        ]  # fmt: skip
        path = write(events, rank=rank, world_size=2, base_ns=1_000, name=f"rank{rank}.json")
        parts.append(with_memory(read(path), path))
    timeline = load(save(merge(parts), tmp_path / "t.kit"))
    rows = memory_peaks(timeline)
    assert [(row.rank, row.device, row.peak_bytes, row.operator, row.at_peak_ns) for row in rows] == [
        (0, "cpu", 150, "aten::add", 15_750), (0, "device 0", 7, "aten::mm", 0),
        (1, "cpu", 151, "aten::add", 15_750), (1, "device 0", 7, "aten::mm", 0),
    ]  # fmt: skip
    assert [(row.allocations, row.releases, row.last_bytes) for row in rows[:2]] == [(2, 1, 0), (1, 0, 7)]
    assert timeline.memory_at_ns[0] == 5_250 + 1_000
    assert timeline.memory_rank.tolist() == [0] * 4 + [1] * 4


def test_memory_that_inductor_takes_between_kernels_belongs_to_the_next(span, write) -> None:
    events = [
        span("user_annotation", "## Call CompiledFxGraph fa ##", 0, 100), span("cpu_op", "aten::mm", 10, 10),
        span("cpu_op", "aten::addmm", 40, 10), instant(30, 64, 64), span("cpu_op", "aten::addmm", 200, 10),
    ]  # fmt: skip
    path = write(events)
    timeline = with_memory(read(path), path)
    calls = (
        Origin(kernel="extern_kernels.mm", lines=("a.py:1: mm",), modules=("first",)),
        Origin(kernel="extern_kernels.addmm", lines=("a.py:2: addmm",), modules=("second",)),
    )
    origins = KernelOrigins(graphs=(GraphOrigins(keys=("fa",), calls=calls),))
    [row] = memory_peaks(timeline, origins=origins)
    assert (row.module, row.line) == ("second", "a.py:2: addmm")
    after = replace(timeline, memory_at_ns=np.array([60_000]))
    [row] = memory_peaks(after, origins=origins)
    assert (row.module, row.line) == ("", "")  # the next one is of another run
