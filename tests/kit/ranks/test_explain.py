"""The sentence on who waits for whom, from rows written by hand."""

from kit.ranks.errors import Frame
from kit.ranks.stacks import Collective, RankStack, Stacks, State


def row(rank: int, state: State, *, line: int = 4, **more: object) -> RankStack:
    frame = Frame(file="<cell 5>", line=line, function="<module>", code="x")
    return RankStack(rank=rank, pid=1, state=state, frames=(frame,), **more)  # type: ignore[arg-type]


def waits(
    rank: int, kind: str = "all_reduce", number: int = 12, tensors: str = "float32[4]", line: int = 4
) -> RankStack:
    collective = Collective(kind=kind, number=number, tensors=tensors)
    return row(rank, State.COLLECTIVE, line=line, collective=collective)


def explain(*rows: RankStack) -> str:
    return Stacks(group="g", rows=rows).explain()


def test_a_rank_that_left_with_an_error_stands_beside_the_one_that_waits() -> None:
    assert explain(waits(0), row(1, State.FAILED, line=2, why="ValueError")) == (
        "rank 0 waits in all_reduce number 12, float32[4], cell 5 line 4; rank 1 left at cell 5 line 2 with ValueError"
    )


def test_different_collectives_are_named_as_such() -> None:
    assert explain(waits(0), waits(1, kind="broadcast", line=6)) == (
        "ranks have met in different collectives: rank 0 waits in all_reduce number 12, float32[4], cell 5 line 4; "
        "rank 1 waits in broadcast number 12, float32[4], cell 5 line 6"
    )


def test_different_shapes_are_named_as_such() -> None:
    assert explain(waits(0), waits(1, tensors="float32[8]")) == (
        "ranks have met in one collective with different tensors: "
        "rank 0 waits in all_reduce number 12, float32[4], cell 5 line 4; "
        "rank 1 waits in all_reduce number 12, float32[8], cell 5 line 4"
    )


def test_a_rank_that_has_left_another_collective_behind_is_told_with_it() -> None:
    last = Collective(kind="broadcast", number=12, tensors="float32[4]")
    assert explain(waits(0), row(1, State.FINISHED, last=last)) == (
        "ranks have met in different collectives: rank 0 waits in all_reduce number 12, float32[4], cell 5 line 4; "
        "rank 1 has finished after broadcast number 12, float32[4]"
    )


def test_different_numbers_are_out_of_step() -> None:
    assert explain(waits(0), waits(1, number=13)).startswith("ranks are out of step: rank 0 waits in all_reduce number")


def test_when_all_are_in_the_same_collective_nobody_is_missing() -> None:
    assert explain(waits(0), waits(1)) == (
        "all ranks are in all_reduce number 12, float32[4], cell 5 line 4; "
        "nobody is missing, so it is the transfer that takes time"
    )


def test_ranks_that_do_the_same_are_told_together_and_at_most_four_by_number() -> None:
    rows = [waits(rank) for rank in range(6)]
    last = Collective(kind="all_reduce", number=11, tensors="float32[4]")
    late = [row(rank, State.RUNNING, line=9, seconds=12.3, last=last) for rank in (6, 7)]
    assert explain(*rows, *late) == (
        "ranks 0, 1, 2, 3 and 2 more wait in all_reduce number 12, float32[4], cell 5 line 4; "
        "ranks 6, 7 have not come to it and run at cell 5 line 9 for 12 s"
    )


def test_more_than_four_kinds_are_counted() -> None:
    rows = [row(rank, State.RUNNING, line=rank) for rank in range(7)]
    assert explain(*rows).endswith("rank 3 runs at cell 5 line 3; and 3 more that differ")


def test_a_group_other_than_the_one_of_all_ranks_is_named() -> None:
    collective = Collective(kind="barrier", number=2, group="3")
    assert explain(row(0, State.COLLECTIVE, collective=collective), row(1, State.FINISHED)) == (
        "rank 0 waits in barrier number 2, group 3, cell 5 line 4; rank 1 has finished"
    )
