import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit.archive import ArchiveError, load, save
from kit.timeline.read import read
from kit.timeline.record import COLUMNS, MEMORY_COLUMNS, Timeline


@pytest.fixture
def pair(data: Path) -> Timeline:
    return read([data / f"h200_static_bucketed_rank{rank}.json.gz" for rank in (0, 1)])


def assert_same(left: Timeline, right: Timeline) -> None:
    for field in dataclasses.fields(Timeline):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if field.name in (*COLUMNS, *MEMORY_COLUMNS):
            assert a.dtype == b.dtype
            assert a.tolist() == b.tolist()
        else:
            assert a == b


def test_a_timeline_is_the_same_after_saving_and_loading(pair: Timeline, tmp_path: Path) -> None:
    assert_same(load(save(pair, tmp_path / "pair.kit")), pair)


def test_a_timeline_travels_between_processes(pair: Timeline) -> None:
    assert_same(pickle.loads(pickle.dumps(pair)), pair)


def test_the_repr_is_one_line_with_ranks_events_and_span(pair: Timeline) -> None:
    begin = int(pair.start_ns.min())
    end = int((pair.start_ns + pair.duration_ns).max())
    assert repr(pair) == f"Timeline(rank 0, 1: 17162 events, 4120 on devices, {(end - begin) / 1e6:.3f} ms)"


def test_rows_are_in_order_of_rank_then_start_and_parents_before_children(pair: Timeline) -> None:
    keys = list(zip(pair.rank.tolist(), pair.start_ns.tolist(), (-pair.duration_ns).tolist(), strict=True))
    assert keys == sorted(keys)
    for rank in pair.ranks:
        assert set(pair.rank[pair.rows_of(rank)].tolist()) == {rank}


def test_a_rank_that_is_not_there_lists_those_that_are(pair: Timeline) -> None:
    with pytest.raises(KeyError, match=r"rank 5 is not in this timeline; it has \[0, 1\]"):
        pair.rows_of(5)


@pytest.mark.parametrize(
    ("column", "wrong", "says"),
    [
        ("name", 10**6, "'name' holds ids"),
        ("category", 200, "'category' holds ids"),
        ("group", -2, "'group' holds ids"),
        ("rank", 9, "rows are of ranks"),
    ],
)
def test_ids_outside_their_tables_are_refused(pair: Timeline, column: str, wrong: int, says: str) -> None:
    values: Any = getattr(pair, column).copy()
    values[0] = wrong
    with pytest.raises(ValueError, match=says):
        dataclasses.replace(pair, **{column: values})


def test_columns_of_another_length_or_type_are_refused(pair: Timeline) -> None:
    with pytest.raises(ValueError, match=r"'lane' is int32 of shape \(3,\), expected 17162 integers"):
        dataclasses.replace(pair, lane=pair.lane[:3])
    with pytest.raises(ValueError, match="'start_ns' is float64"):
        dataclasses.replace(pair, start_ns=pair.start_ns.astype(np.float64))  # type: ignore[arg-type]


def test_a_saved_timeline_with_foreign_ids_is_one_error(
    pair: Timeline, tmp_path: Path, write: Callable[..., Path]
) -> None:
    path = save(pair, tmp_path / "pair.kit")
    import zipfile

    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["header.json"] = members["header.json"].replace(b'"rank":1', b'"rank":7')
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(ArchiveError, match="the fields do not make a Timeline: timeline rows are of ranks"):
        load(path)
