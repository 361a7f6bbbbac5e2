from dataclasses import replace
from pathlib import Path

import pytest

from kit.timeline.clocks import aligned, clocks
from kit.timeline.match import match
from kit.timeline.read import read
from kit.timeline.record import Timeline

SHIFT_NS = 134_000_000


@pytest.fixture
def shifted(data: Path) -> tuple[Timeline, Timeline]:
    timeline = read([data / f"h200_ddp_eager_rank{rank}.json.gz" for rank in (0, 1)])
    start = timeline.start_ns.copy()
    start[timeline.rows_of(1)] += SHIFT_NS
    return timeline, replace(timeline, start_ns=start)


def test_a_shifted_clock_is_found_and_set_right(shifted: tuple[Timeline, Timeline]) -> None:
    right, wrong = shifted
    assert not match(wrong).clocks_agree
    row = clocks(wrong)[1]
    assert abs(row.ahead_ns - SHIFT_NS) < 28_000  # ends of one collective differ by that much
    assert row.is_constant
    assert row.collectives == 28
    again = aligned(wrong)
    assert match(again).clocks_agree
    assert match(again).straggler == match(right).straggler == 0
    assert again.notes[-1].startswith("rank 1: times moved by -133.996 ms to the clock of rank 0")


def test_clocks_that_no_shift_sets_right_are_refused(shared_data: Path) -> None:
    timeline = read([shared_data / f"public/hta/sampled/rank{rank}.json.gz" for rank in (0, 1)])
    assert not clocks(timeline)[1].is_constant
    with pytest.raises(ValueError, match=r"clocks of ranks \[1\] are no constant shift away"):
        aligned(timeline)


def test_one_rank_alone_has_no_clock_to_compare(data: Path) -> None:
    assert len(clocks(read(data / "h200_ddp_eager_rank0.json.gz"))) == 0
