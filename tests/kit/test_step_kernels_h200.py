"""A real Inductor step of one H200 (torch 2.11, 3 ms): its kernels, launched one by one and replayed as a CUDA graph.

`kit.profile`, the step's graph and Inductor's own texts, as tests/gpu/test_kernels.py had them there.
"""

import gzip
from collections import Counter
from pathlib import Path

import msgspec
import pytest

import kit
from kit._torch.inductor_output import CompiledText
from kit.step.compiled_code import CompiledGraph
from kit.step_kernels import graph_origins
from kit.timeline.kernel_origins import OriginRow
from kit.timeline.origins import KernelOrigins
from kit.timeline.record import Category, Timeline
from kit.timeline.rows import Measured

DATA = Path(__file__).parents[1] / "data" / "h200_inductor"
ACTIVE = 2


@pytest.fixture(scope="module")
def origins() -> KernelOrigins:
    texts = msgspec.json.decode(gzip.decompress((DATA / "texts.json.gz").read_bytes()), type=tuple[CompiledText, ...])
    compiled = CompiledGraph(graph=kit.load(DATA / "graph.kit"), texts=texts)
    return KernelOrigins(graphs=tuple(graph_origins(compiled)))


@pytest.fixture(scope="module", params=["inductor", "cuda_graph"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def timeline(way: str) -> Timeline:
    return kit.load(DATA / f"{way}.kit")


@pytest.fixture(scope="module")
def table(timeline: Timeline, origins: KernelOrigins) -> Measured[OriginRow]:
    return kit.attribute(timeline, origins, hardware="h200")


def triton(table: Measured[OriginRow]) -> list[OriginRow]:
    return [row for row in table if row.kernel.startswith("triton_")]


def test_all_the_time_of_every_triton_kernel_is_in_the_table(timeline: Timeline, table: Measured[OriginRow]) -> None:
    measured: Counter[str] = Counter()
    for name, ns, category in zip(timeline.name, timeline.duration_ns, timeline.category, strict=True):
        if category == Category.KERNEL and timeline.strings[name].startswith("triton_"):
            measured[timeline.strings[name]] += int(ns)
    ours: Counter[str] = Counter()
    for row in triton(table):
        ours[row.kernel] += row.total_ns
    assert len(measured) == 32
    assert ours == measured
    assert all(row.events % ACTIVE == 0 for row in table)


def test_what_a_library_runs_is_found_where_it_was_launched_or_by_its_place(
    way: str, timeline: Timeline, table: Measured[OriginRow], origins: KernelOrigins
) -> None:
    products = [row for row in table if row.kernel.startswith("extern_kernels.")]
    calls = [call for call in origins.graphs[0].calls if call.kernel.startswith("extern_kernels.")]
    assert len(products) == len(calls) > 20
    assert all(0 < row.flops_share < 0.06 for row in products if row.flops_share is not None)  # float32, no TF32
    copies = timeline.duration_ns[timeline.category == Category.MEMCPY].sum() if way == "cuda_graph" else 0
    whole = timeline.duration_ns[timeline.category <= Category.MEMSET].sum()
    share = float(table.notes[-1].split(" %")[0]) / 100
    assert share == pytest.approx(1 - copies / whole, abs=0.01)  # a replay's inputs are copied in before it


def test_a_replay_takes_as_long_for_each_call_as_launches_one_by_one(origins: KernelOrigins) -> None:
    """The calls of the one are known by the ranges around their launches, those of the other by name and place."""
    one, other = (
        {(row.kernel, row.nodes, row.module): row for row in kit.attribute(kit.load(DATA / f"{way}.kit"), origins)}
        for way in ("inductor", "cuda_graph")
    )
    assert one.keys() == other.keys()
    for call, row in one.items():
        assert other[call].events == row.events, call
        assert other[call].total_ns == pytest.approx(row.total_ns, rel=0.1, abs=1500), call


def test_no_kernel_claims_work_that_it_does_not_do(table: Measured[OriginRow]) -> None:
    assert all(row.tflops in (0, None) for row in triton(table))  # a bias comes after its product
    assert all(row.bandwidth_share < 1 for row in triton(table) if row.bandwidth_share is not None)
    assert sum(row.bandwidth_share is not None for row in triton(table)) > 20


def test_kernels_lead_to_lines_and_the_optimizers_to_its_operators(table: Measured[OriginRow]) -> None:
    gelu = [row for row in triton(table) if row.kernel == "triton_poi_fused_addmm_gelu_view_2"]
    assert [row.line for row in gelu] == [
        "small_models.py:21: return x + self.down(F.gelu(self.up(self.norm2(x))))"
    ] * 2
    assert {row.module for row in gelu} == {"blocks.0.up and 1 more", "blocks.1.up and 1 more"}
    assert {row.moved_bytes for row in gelu} == {2 * 16 * 128 * 1024 * 4}  # the product in, the activation out
    lists = [row for row in triton(table) if row.kernel.startswith("triton_for_")]
    assert len(lists) == 3
    assert all(row.module == "(optimizer)" and "_foreach_" in row.nodes for row in lists)
