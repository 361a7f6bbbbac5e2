from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from kit.timeline.changes import changes, compare_timelines, of_ranks
from kit.timeline.read import read, read_file
from kit.timeline.recomputation import recomputed, recomputing
from kit.timeline.record import Timeline


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def profiled(path: Path, how: Callable[[nn.Module, torch.Tensor], torch.Tensor], layers: int = 2) -> Timeline:
    torch.manual_seed(0)
    blocks = nn.ModuleList([Block() for _ in range(layers)])

    def step() -> None:
        x = torch.ones(4, 16, requires_grad=True)
        for block in blocks:
            x = how(block, x)
        x.sum().backward()

    step()
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as recorder:
        step()
    recorder.export_chrome_trace(str(path))
    return read_file(path, rank=0)


@pytest.fixture(scope="module")
def timelines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Timeline]:
    folder = tmp_path_factory.mktemp("traces")
    ways: dict[str, Any] = {
        "plain": lambda block, x: block(x),
        "reentrant": lambda block, x: checkpoint(block, x, use_reentrant=True),
        "other": lambda block, x: checkpoint(block, x, use_reentrant=False),
    }
    return {name: profiled(folder / f"{name}.json", how) for name, how in ways.items()}


@pytest.mark.parametrize("kind", ["reentrant", "other"])
def test_the_forward_that_runs_again_is_found_in_a_real_profile(timelines: dict[str, Timeline], kind: str) -> None:
    calls: dict[str, int] = {}
    for row in recomputed(timelines[kind]):
        calls[row.operator] = calls.get(row.operator, 0) + row.calls
    # Two linears and a relu a block and two blocks; the last sum of a block may not be needed again.
    assert calls["aten::linear"] == 4
    assert calls["aten::relu"] == 2
    assert set(calls) <= {"aten::linear", "aten::relu", "aten::add"}


def test_a_plain_backward_repeats_nothing(timelines: dict[str, Timeline], data: Path) -> None:
    assert (recomputing(timelines["plain"]) == -1).all()
    assert len(recomputed(read(data / "h200_ddp_eager_rank0.json.gz"))) == 0


def test_a_comparison_names_the_repeated_launches(timelines: dict[str, Timeline]) -> None:
    rows = changes(timelines["plain"], timelines["reentrant"])
    node = next(row for row in rows if row.operator == "CheckpointFunctionBackward")
    assert (node.phase, node.events_before) == ("backward", 0)
    totals = {what: after for what, _, after in compare_timelines(timelines["plain"], timelines["other"])}
    assert float(totals["recomputed launches"]) > 0


def test_a_timeline_does_not_differ_from_itself(data: Path) -> None:
    both = read([data / f"h200_ddp_eager_rank{rank}.json.gz" for rank in (0, 1)])
    assert compare_timelines(both, both) == []
    assert all(row.change_ns == 0 for row in changes(both, both))


def test_two_ranks_of_a_run_do_the_same_work_in_other_times(data: Path) -> None:
    both = read([data / f"h200_ddp_eager_rank{rank}.json.gz" for rank in (0, 1)])
    rows = changes(of_ranks(both, 0), of_ranks(both, 1))
    assert all(row.events_before == row.events_after for row in rows)
    most = rows[0]
    assert (most.operator, most.phase, most.events_before) == ("c10d::allreduce_", "backward", 14)
    assert most.change_ns == (80_017_456 - 9_032_963) / 2  # two steps


def test_operators_of_one_side_only_stand_against_nothing(data: Path) -> None:
    eager, static = (read(data / f"h200_{kind}_rank0.json.gz") for kind in ("ddp_eager", "static_bucketed"))
    rows = {row.operator: row for row in changes(eager, static)}
    assert rows["CompiledFunctionBackward"].events_before == 0
    assert rows["AddmmBackward0"].events_after == 0
    assert sum(row.events_after for row in rows.values()) == 1030
