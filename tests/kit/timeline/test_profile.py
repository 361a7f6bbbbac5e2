"""Profiles of real steps, on this process alone and on two gloo ranks."""

import itertools
import multiprocessing as mp
import os
import queue
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kit import progress
from kit.archive import load, save
from kit.timeline.measure import breakdown
from kit.timeline.profile import merge, profile_rank
from kit.timeline.steps import Mark, steps

torch = pytest.importorskip("torch")
LIMIT_SECONDS = 60


def step(batch: Any) -> None:
    (batch @ batch).relu().sum()


def test_the_active_steps_are_marked_and_the_warm_up_is_not_in_the_record() -> None:
    seen: list[int] = []
    timeline = profile_rank(
        lambda batch: (seen.append(1), step(batch)), itertools.repeat(torch.ones(32, 32)), warmup=2, active=3
    )
    assert len(seen) == 5
    assert len(steps(timeline, 0, mark=Mark.PROFILER)) == 3
    assert sum(timeline.strings[i] == "aten::mm" for i in timeline.name) == 3
    assert (timeline.ranks, timeline.sources, timeline.cpu_only) == ((0,), ("kit.profile",), True)


def test_nothing_is_lost_at_the_start_of_the_first_active_step() -> None:
    timeline = profile_rank(step, [torch.ones(32, 32)] * 3, warmup=1, active=2)
    [first, _] = steps(timeline, 0, mark=Mark.PROFILER)
    names = [
        timeline.strings[timeline.name[row]]
        for row in range(len(timeline))
        if first.start_ns <= timeline.start_ns[row] < first.end_ns
    ]
    assert [name for name in names if name in ("aten::mm", "aten::relu")] == ["aten::mm", "aten::relu"]


def test_too_few_batches_are_refused_before_the_first_step() -> None:
    called: list[Any] = []
    with pytest.raises(ValueError) as caught:
        profile_rank(called.append, [torch.ones(1)] * 3, warmup=1, active=3)
    assert str(caught.value) == (
        "profile got 3 batches, expected at least 4 (warmup 1 + active 3). Give more batches, "
        "for instance itertools.repeat(batch, 4), or lower active="
    )
    with pytest.raises(ValueError, match="profile got 2 batches"):
        profile_rank(called.append, iter([1, 2]))
    assert called == []


@pytest.mark.parametrize(("warmup", "active"), [(0, 3), (1, 0)])
def test_at_least_one_step_of_each_kind_is_needed(warmup: int, active: int) -> None:
    with pytest.raises(ValueError, match=f"warmup {warmup}, active {active}; expected at least 1 of each"):
        profile_rank(step, itertools.repeat(torch.ones(1)), warmup=warmup, active=active)


def test_an_error_in_the_step_comes_out_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fail(batch: Any) -> None:
        raise RuntimeError("in the step")

    with pytest.raises(RuntimeError, match="in the step"):
        profile_rank(fail, [1, 2, 3, 4])
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_the_steps() -> None:
    events: list[progress.Event] = []
    stop = progress.subscribe(events.append)
    try:
        profile_rank(step, [torch.ones(2, 2)] * 3, warmup=1, active=2)
    finally:
        stop()
    said = [(event.done, event.total, event.message) for event in events if event.task == "profile"]
    assert said[:4] == [(0, 3, ""), (1, 3, "warm-up"), (2, 3, "active step 1"), (3, 3, "active step 2")]


def profile_in_rank(rank: int, folder: str, done: Any) -> None:
    import torch.distributed as dist

    try:
        store = dist.FileStore(str(Path(folder) / "store"), 2)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=30))
        weight = torch.ones(64, 64, requires_grad=True)

        def train(batch: Any) -> None:
            weight.grad = None
            (batch @ weight).square().mean().backward()
            dist.all_reduce(weight.grad)

        timeline = profile_rank(train, [torch.ones(64, 64)] * 3, warmup=1, active=2)
        save(timeline, Path(folder) / f"rank{rank}.kit")
        dist.destroy_process_group()
        done.put((rank, "ok"))
    except BaseException as error:
        done.put((rank, repr(error)))


def test_two_gloo_ranks_profile_themselves_and_merge(tmp_path: Path) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    context = mp.get_context("spawn")
    done = context.Queue()
    ranks = [context.Process(target=profile_in_rank, args=(rank, str(tmp_path), done)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    try:
        said = {}
        end = time.monotonic() + LIMIT_SECONDS
        while len(said) < 2 and time.monotonic() < end:
            try:
                rank, word = done.get(timeout=0.5)
                said[rank] = word
            except queue.Empty:
                continue
    finally:
        for process in ranks:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
    assert said == {0: "ok", 1: "ok"}
    timeline = merge([load(tmp_path / f"rank{rank}.kit") for rank in (1, 0)])
    assert timeline.ranks == (0, 1)
    assert [part.world_size for part in timeline.parts] == [2, 2]
    assert not any(note.startswith("ranks missing") for note in timeline.notes)
    for row in breakdown(timeline):
        assert row.communication_ns > 0
        assert row.compute_ns + row.exposed_communication_ns + row.exposed_copy_ns + row.idle_ns == row.window_ns
    assert [len(steps(timeline, rank, mark=Mark.PROFILER)) for rank in (0, 1)] == [2, 2]
