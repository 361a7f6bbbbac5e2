"""Errors as the person reads them."""

from kit.ranks.errors import Failure, Frame, InterruptedRanksError, RankError


def frame(line: int) -> Frame:
    return Frame(file="<cell 5>", line=line, function="<module>", code=f"line_{line}()")


def raised(rank: int, message: str, *, line: int = 4, folded: bool = False) -> Failure:
    return Failure(rank=rank, type="ValueError", message=message, frames=(frame(line),), folded=folded)


def test_the_cause_comes_first_and_consequences_are_one_line_each() -> None:
    error = RankError([raised(2, "boom")], consequences=[raised(0, "x", line=6, folded=True)], note="All is well.")
    assert error._render_traceback_() == [
        "RankError: rank 2: ValueError: boom",
        "    <cell 5>, line 4: line_4()",
        "rank 0: aborted because rank 2 raised ValueError (it was at <cell 5>, line 6: line_6())",
        "All is well.",
    ]
    assert error.rank == 2


def test_at_most_four_ranks_are_shown_and_the_rest_counted() -> None:
    consequences = [raised(rank, "x", folded=True) for rank in range(1, 16)]
    lines = str(RankError([raised(0, "boom")], consequences=consequences)).split("\n")
    assert [line.split(":")[0] for line in lines if line.startswith("rank")] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert lines[-1] == "... and 12 more ranks"


def test_many_different_causes_are_counted_too() -> None:
    lines = str(RankError([raised(rank, f"no {rank}") for rank in range(6)])).split("\n")
    assert sum(line.startswith("rank ") for line in lines) == 4
    assert lines[-1] == "... and 2 more ranks"


def test_equal_failures_are_told_once_for_all_their_ranks() -> None:
    text = str(RankError([raised(rank, "boom") for rank in (3, 1, 0, 2, 4)]))
    assert text == "ranks 0, 1, 2, 3 and 1 more: ValueError: boom\n    <cell 5>, line 4: line_4()"


def test_equal_messages_from_different_lines_are_told_apart() -> None:
    text = str(RankError([raised(0, "boom", line=1), raised(1, "boom", line=2)]))
    assert text.count("ValueError: boom") == 2


def test_the_remote_traceback_is_the_cause() -> None:
    failure = Failure(rank=0, type="ValueError", message="boom", text="Traceback: the long one")
    assert str(RankError([failure]).__cause__) == "on the rank\nTraceback: the long one"


def test_an_interrupt_says_where_each_rank_was() -> None:
    error = InterruptedRanksError([raised(1, "x", line=2), raised(0, "x", line=1)], note="Idle.")
    assert isinstance(error, KeyboardInterrupt)
    assert error._render_traceback_() == [
        "KeyboardInterrupt: interrupted",
        "rank 0: stopped at <cell 5>, line 1: line_1()",
        "rank 1: stopped at <cell 5>, line 2: line_2()",
        "Idle.",
    ]


def test_a_frame_in_a_function_names_it() -> None:
    assert str(Frame(file="a.py", line=3, function="f", code="g()")) == "a.py, line 3, in f: g()"
    assert str(Frame(file="a.py", line=3, function="<module>", code="")) == "a.py, line 3"
