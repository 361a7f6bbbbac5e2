from pathlib import Path
from typing import Any

import pytest

import kit
from kit.timeline.measures import MEASURES
from kit.timeline.read import read
from kit.timeline.rows import Measured, cell, table

OWN = ["h200_ddp_eager", "h200_static_cudagraph", "gloo_ddp", "gloo_functional"]


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("what", MEASURES)
def test_every_measure_takes_every_capture(data: Path, kind: str, what: str) -> None:
    timeline = read([data / f"{kind}_rank{rank}.json.gz" for rank in (0, 1)])
    found = kit.measure(timeline, what)
    assert str(found)
    assert found._repr_html_().startswith("<table>")
    assert str(kit.table(found)) == str(found)


def test_an_empty_trace_measures_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text('{"traceEvents": []}')
    timeline = read(path)
    for what in MEASURES:
        assert isinstance(kit.measure(timeline, what), Measured)


def test_another_name_is_answered_with_the_list(data: Path) -> None:
    with pytest.raises(ValueError, match="measure\\(\\) knows no 'speed'; it knows\n  breakdown: compute"):
        kit.measure(read(data / "gloo_ddp_rank0.json.gz"), "speed")
    with pytest.raises(TypeError, match="measure\\(\\) got a str, expected a Timeline"):
        kit.measure("speed")  # type: ignore[arg-type]


def test_a_table_shows_units_and_says_how_much_it_leaves_out(data: Path) -> None:
    found = kit.measure(read(data / "h200_ddp_eager_rank0.json.gz"), "kernels", by=("rank", "name"))
    shown = table(found, most=3)
    assert shown.head[:3] == ("rank", "name", "events")
    assert "total ms" in shown.head
    assert len(shown.rows) == 3
    assert shown.notes[-1] == f"{len(found) - 3} more rows are not shown"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [("a_ns", 1_234_567, "1.235"), ("share", 0.5, "50.0 %"), ("alarm", True, "yes"), ("x", None, "none"),
     ("x", 12345, "12,345"), ("x", "w" * 80, "w" * 69 + "...")],
)  # fmt: skip
def test_cells(name: str, value: Any, text: str) -> None:
    assert cell(name, value) == text


def test_rows_are_given_to_pandas_or_it_is_named(data: Path) -> None:
    found = kit.measure(read(data / "h200_ddp_eager_rank0.json.gz"), "kernels")
    try:
        import pandas  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match="needs pandas"):
            found.to_pandas()
    else:
        frame = found.to_pandas()
        assert list(frame.columns[:2]) == ["rank", "kind"]
        assert frame["total_ns"].sum() == sum(row.total_ns for row in found)


def test_two_timelines_are_compared_by_what_a_step_does(data: Path, tmp_path: Path) -> None:
    eager, static = (read(data / f"h200_{kind}_rank0.json.gz") for kind in ("ddp_eager", "static_bucketed"))
    found = kit.compare(eager, static)
    rows = {row.field: (row.left, row.right) for row in found}
    assert rows["launches"] == ("1,100.000", "1,030.000")
    assert rows["backward: c10d::allreduce_"] == ("4.516 ms, 14 events, 14 launches, 1.501 ms exposed", "none")
    assert found.kind == "Timeline"
    assert not kit.compare(eager, kit.load(kit.save(eager, tmp_path / "eager.kit")))


def test_a_column_that_no_row_has_a_value_for_is_left_out_and_named(data: Path) -> None:
    timeline = read([data / f"h200_ddp_eager_rank{rank}.json.gz" for rank in (0, 1)])
    shown = table(kit.measure(timeline, "clocks"))
    assert "drift ppm" not in shown.head
    assert "left out, as no row has a value: drift ppm" in shown.notes
    assert {len(row) for row in shown.rows} == {len(shown.head)}
    assert "step" not in table(kit.measure(timeline)).head  # the whole window, so of no step
    by_step = table(kit.measure(timeline, "steps"))
    assert "step" in by_step.head
    assert not [note for note in by_step.notes if note.startswith("left out")]


def test_the_first_rows_say_how_many_there_are_besides(data: Path) -> None:
    found = kit.measure(read(data / "h200_ddp_eager_rank0.json.gz"), "kernels")
    few = found.first(2)
    assert few.rows == found.rows[:2]
    assert few.notes == (*found.notes, f"{len(found) - 2} more rows are not shown")
    assert found.first(len(found)) == found
