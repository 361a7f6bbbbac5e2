from typing import Any

import pytest

from kit.timeline.exact import integers
from kit.timeline.fields import Tables, members
from kit.timeline.kineto import Args, Event
from kit.timeline.record import Group


def event(name: str, **args: Any) -> Event[float]:
    return Event(ph="X", cat="cpu_op", name=name, pid=1, tid=2, args=Args(**args))


def columns(tables: Tables, spans: list[Any]) -> dict[str, Any]:
    return tables.columns(spans, tables.categories(spans), integers)


def test_a_group_is_made_once_however_often_it_is_written() -> None:
    tables = Tables()
    said = {"group_name": "0", "group_description": "default", "group_ranks": "[0, 1]"}
    column = columns(tables, [event("a", **said), event("b"), event("c", **said)])["group"]
    assert column.tolist() == [0, -1, 0]
    assert list(tables.groups) == [Group(name="0", description="default", ranks=(0, 1))]


def test_numbers_that_are_equal_but_written_otherwise_are_other_groups() -> None:
    tables = Tables()
    names: list[Any] = [1, 1.0, True, "1"]
    column = columns(tables, [event("a", group_name=name) for name in names])["group"]
    groups = list(tables.groups)
    assert [groups[row].name for row in column.tolist()] == ["1", "1.0", "True", "1"]


def test_fields_of_a_collective_stand_alone() -> None:
    """Each may be there without the others."""
    tables = Tables()
    spans = [event("a", dtype="Float"), event("b", collective="allreduce"), event("c", group_name="g"), event("d")]
    found = columns(tables, spans)
    assert found["dtype"].tolist() == [0, -1, -1, -1]
    assert found["collective"].tolist() == [-1, 0, -1, -1]
    assert found["group"].tolist() == [-1, -1, 0, -1]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [("[0, 1]", (0, 1)), ([2, "3"], (2, 3)), ("[0, ...]", ()), ("x", ()), (None, ()), ([0, -1], ())],
)
def test_members_are_a_list_or_its_text(ranks: Any, expected: tuple[int, ...]) -> None:
    assert members(ranks) == expected
