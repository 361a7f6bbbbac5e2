"""Findings on real captures: the order of reasons is known from how they were made (facts, README of the data)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from kit.timeline.diagnosis.communication import invisible
from kit.timeline.diagnosis.explain import MOST_FINDINGS
from kit.timeline.diagnosis.facts import facts_of
from kit.timeline.diagnosis.finding import Diagnosis, Finding
from kit.timeline.intervals import length
from kit.timeline.read import read, read_file

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


def by_kind(found: Diagnosis) -> dict[str, Finding]:
    return {finding.kind: finding for finding in found}


def assert_well_formed(found: Diagnosis) -> None:
    lost = [finding.lost_ns for finding in found]
    assert lost == sorted(lost, reverse=True)
    assert len(found) <= MOST_FINDINGS
    for finding in found:
        assert finding.evidence
        assert finding.advice
        assert 0.01 < finding.share <= 1
        assert finding.title in str(found)
        assert finding.title in found._repr_html_()


def test_eager_fsdp_is_bound_by_the_hosts_of_both_ranks_which_take_turns(shared_data: Path) -> None:
    found = read([shared_data / f"h200/gpt163m_fsdp_eager_rank{rank}.json.gz" for rank in (0, 1)]).explain()
    assert_well_formed(found)
    assert [finding.kind for finding in found][:2] == ["host", "waiting"]
    assert found[0].share > 0.4
    assert "the ranks take turns at being late, which slows them more than one steady straggler" in found[1].evidence
    assert any("cuda_graph" in text for text in found[0].advice)
    # 63 ms of communication are exposed, but only 4 of them are transfer.
    assert by_kind(found)["transfer"].lost_ns < 5_000_000


def test_static_bucketed_waits_for_one_late_host_and_its_one_bucket_hides_nothing(data: Path) -> None:
    found = read([data / f"h200_static_bucketed_rank{rank}.json.gz" for rank in (0, 1)]).explain()
    assert_well_formed(found)
    kinds = by_kind(found)
    assert [finding.kind for finding in found][:2] == ["host", "waiting"]
    assert (kinds["host"].rank, kinds["waiting"].rank) == (1, 0)
    assert kinds["waiting"].title == "rank 0 waits for rank 1"
    assert kinds["waiting"].lost_ns == 88_576_410  # golden waiting: nothing computes meanwhile
    assert "rank 1 came last to 4 of 4 collectives and waited 0.0 ms itself" in kinds["waiting"].evidence
    assert "hides 0 %" in kinds["transfer"].evidence[0]
    assert kinds["transfer"].advice[0].startswith("one bucket holds everything")


def test_a_replayed_cuda_graph_is_bound_by_its_device(data: Path) -> None:
    found = read([data / f"h200_static_cudagraph_rank{rank}.json.gz" for rank in (0, 1)]).explain()
    assert_well_formed(found)
    assert "compute 90 %" in found.headline
    assert set(by_kind(found)) == {"gaps", "transfer", "waiting"}
    assert all(finding.share < 0.05 for finding in found)
    assert not any("executor='cuda_graph'" in text for finding in found for text in finding.advice)


def test_eager_ddp_waits_for_the_rank_whose_host_is_late(data: Path) -> None:
    found = read([data / f"h200_ddp_eager_rank{rank}.json.gz" for rank in (0, 1)]).explain()
    assert_well_formed(found)
    kinds = by_kind(found)
    assert kinds["host"].rank == 0
    assert kinds["waiting"].title == "rank 1 waits for rank 0"
    assert "unfused" in kinds
    assert "invisible" not in kinds  # nothing is compiled


@pytest.mark.parametrize("kind", ["ddp_eager", "static_bucketed", "static_cudagraph"])
def test_what_is_lost_and_the_computing_are_the_window(data: Path, kind: str) -> None:
    timeline = read([data / f"h200_{kind}_rank{rank}.json.gz" for rank in (0, 1)])
    for each in facts_of(timeline).ranks:
        parts = [
            each.seen.compute, each.waiting, each.transfer, each.seen.exposed_copy, each.after_sync, each.loading,
            each.late_host, each.between_kernels, each.unexplained,
        ]  # fmt: skip
        assert sum(length(part) for part in parts if part is not None) == each.window_ns


def test_a_real_compiled_ddp_hides_its_all_reduce_from_the_compiler(tmp_path: Path) -> None:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        wrapped = torch.compile(DistributedDataParallel(model), backend="aot_eager")
        x = torch.ones(8, 64)
        for _ in range(2):
            wrapped(x).sum().backward()
        with profile(activities=[ProfilerActivity.CPU], with_stack=True) as recorder:
            wrapped(x).sum().backward()
        recorder.export_chrome_trace(str(tmp_path / "rank0.json"))
    finally:
        dist.destroy_process_group()
        torch.compiler.reset()
    # The rule itself: on a busy machine the host waits so long that the all-reduce is less than 1 % of the step.
    [found] = invisible(facts_of(read_file(tmp_path / "rank0.json", rank=0)))
    assert found.title == "AllReduce is invisible to the compiler"
    assert "c10d::allreduce_" in found.evidence[0]
    assert found.advice == ("kit.compile_step(model, ..., strategy='ddp'): the same all-reduces inside the one graph",)


def test_a_synchronise_inside_the_step_is_found_with_its_line(write: Write, span: Span) -> None:
    events = [span("python_function", "train.py(9): step", 0, 900)]
    for n in range(3):
        at = 300 * n
        events += [
            span("cuda_runtime", "cudaLaunchKernel", at + 1, 2, correlation=n + 1),
            span("kernel", "gemm", at + 10, 90, pid=0, tid=7, stream=7, device=0, correlation=n + 1),
            span("cpu_op", "aten::item", at + 5, 100),
            span("cuda_runtime", "cudaStreamSynchronize", at + 6, 98),
        ]
    found = read(write(events)).explain()
    [first] = found
    assert (first.kind, first.lost_ns, first.where) == ("synchronise", 2 * 210_000, "train.py(9): step")
    assert first.evidence[1] == "from aten::item"


def test_nothing_to_explain_is_said(write: Write) -> None:
    found = read(write([])).explain()
    assert len(found) == 0
    assert found.headline == "nothing ran on a device or in an operator, so there is nothing to explain"
    assert "nothing costs more than 1 % of a window" in str(found)
