"""A capture of our own: `kit.profile_rank` of an FSDP step in one CUDA graph, GPT-163M, two H200s, torch 2.11, NCCL.

Made by tests/bench/step.py, whose committed result has the step without a profiler beside it.
"""

import json
import statistics
from pathlib import Path

import pytest

import kit
from kit.timeline.measure import breakdown_by_step
from kit.timeline.merge import merge

TESTS = Path(__file__).parents[2]
SENDS_IN_THE_PLAN = 31  # of kit.plan for this model: 16 gathers, 14 reduce-scatters, the loss


@pytest.fixture(scope="module")
def timeline():
    return merge([kit.load(TESTS / f"data/h200_kit_fsdp_rank{rank}.kit") for rank in (0, 1)])


def test_every_collective_of_the_plan_is_seen_once_a_step_on_both_ranks(timeline):
    rows = kit.measure(timeline, "collectives").rows
    assert len(rows) == 3 * SENDS_IN_THE_PLAN
    assert all(row.ranks == 2 for row in rows)


def test_the_parts_of_a_step_sum_to_it_and_communication_is_hidden(timeline):
    rows = breakdown_by_step(timeline)
    assert len(rows) == 6
    for row in rows:
        parts = row.compute_ns + row.exposed_communication_ns + row.exposed_copy_ns + row.idle_ns
        assert parts == row.window_ns
        assert row.overlap_share > 0.8
    result = json.loads((TESTS / "bench/results/step_163m_2xh200.json").read_text())
    least = [
        min(a.exposed_communication_ns, b.exposed_communication_ns) for a, b in zip(rows[:3], rows[3:], strict=True)
    ]
    share = statistics.median(least) / 1e6 / result["figures"]["kit fsdp: step"]["value"]
    assert share == pytest.approx(result["figures"]["kit fsdp: exposed"]["value"], rel=1e-9)
    assert share < 0.03
