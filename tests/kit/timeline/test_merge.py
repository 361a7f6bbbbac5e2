from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.timeline.error import TraceError
from kit.timeline.merge import merge
from kit.timeline.read import read

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


def test_text_lanes_and_groups_survive_the_joining_of_tables(write: Write, span: Span) -> None:
    one = read(write([span("kernel", "b", 1, 1, **{"Process Group Name": "x"}), span("kernel", "a", 2, 1)], rank=1))
    zero = read(write([span("kernel", "a", 5, 1), span("kernel", "c", 6, 1, **{"Process Group Name": "y"})], rank=0))
    both = merge([one, zero])
    assert both.ranks == (0, 1)
    assert [both.strings[i] for i in both.name] == ["a", "c", "b", "a"]
    assert [both.groups[i].name if i >= 0 else None for i in both.group] == [None, "y", "x", None]
    assert [both.lanes[i].rank for i in both.lane] == [0, 0, 1, 1]
    assert len(both.strings) == 3


def test_two_records_of_one_rank_are_refused(write: Write, span: Span) -> None:
    first = read(write([span("kernel", "a", 1, 1)], rank=2, name="a.json"))
    second = read(write([span("kernel", "a", 1, 1)], rank=2, name="b.json"))
    with pytest.raises(TraceError) as caught:
        merge([first, second])
    assert str(caught.value) == (
        f"rank 2 comes 2 times: {first.sources[0]}, {second.sources[0]}; expected one file a rank. "
        "Read the files of one run only"
    )


def test_one_of_several_without_a_rank_is_refused(write: Write, span: Span) -> None:
    known = read(write([span("kernel", "a", 1, 1)], rank=0, name="a.json"))
    unknown = read(write([span("kernel", "a", 1, 1)], rank=None, name="b.json"))
    with pytest.raises(TraceError, match=r"b\.json: the rank is unknown, expected one rank a file"):
        merge([known, unknown])


def test_ranks_that_the_files_speak_of_but_that_are_not_there_are_named(write: Write, span: Span) -> None:
    records = [
        read(write([span("kernel", "a", 1, 1)], rank=rank, world_size=4, name=f"{rank}.json")) for rank in (0, 1, 3)
    ]
    note = "ranks missing: 1 of 4 (2); waiting for them cannot be seen"
    assert merge(records).notes == (note, *(n for n in records[0].notes if not n.startswith("ranks missing")))[::-1]


def test_a_file_may_claim_any_world_size(write: Write, span: Span) -> None:
    timeline = read(write([span("kernel", "a", 1, 1)], rank=1, world_size=2**40))
    assert (
        f"ranks missing: {2**40 - 1} of {2**40} (0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, ...); "
        "waiting for them cannot be seen"
    ) in timeline.notes


def test_nothing_to_merge_is_an_error() -> None:
    with pytest.raises(TraceError, match="got no timeline"):
        merge([])
