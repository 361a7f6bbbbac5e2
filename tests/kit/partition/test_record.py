from dataclasses import fields, replace

import numpy as np
import pytest

from kit.archive import load, save
from kit.graph.record import Kind
from kit.partition.cut import cut
from kit.partition.record import Cut, CyclicCutError, imbalance, megabytes


@pytest.fixture
def halves(make_graph, row):
    """A cut with a crossing value, a duplicated constant and a tied parameter."""
    rows = [
        row(name="x", kind=Kind.INPUT, shape="int64[2]"),
        row(name="w", kind=Kind.INPUT, parameter="w"),
        row(name="mask"),
        row(name="a", reads=["x", "w", "mask"], nbytes=3_000_000, shape="float32[2, 4]", module="model.a"),
        row(name="index", reads=["x"], nbytes=1_000_000, shape="int64[2]"),
        row(name="b", reads=["a", "w", "mask", "index"]),
    ]
    return cut(make_graph(rows), 2, seconds=[0, 0, 0, 30, 20, 45])


def test_a_cut_says_itself_in_one_line(halves):
    assert repr(halves) == (
        "2 stages, 4.0 MB per micro-batch crosses (7.0 MB with gradients), slowest stage +5.3 %, no cycle"
    )


def test_a_saved_cut_loads_as_it_was(halves, tmp_path):
    again = load(save(halves, tmp_path / "cut.kit"))
    assert isinstance(again, Cut)
    for field in fields(Cut):
        before, after = getattr(halves, field.name), getattr(again, field.name)
        assert type(before) is type(after)
        assert np.array_equal(before, after) if isinstance(before, np.ndarray) else before == after


def test_a_gradient_comes_back_for_floats_only(halves):
    assert [(crossing.name, crossing.is_float) for crossing in halves.crossings] == [("a", True), ("index", False)]


def test_a_value_that_goes_back_is_refused(halves):
    back = replace(halves.crossings[0], from_part=1, to_parts=(0,))
    with pytest.raises(CyclicCutError) as caught:
        replace(halves, crossings=(back,))
    assert str(caught.value) == (
        "cut of 'made': a goes from part 1 to part 0; parts run in order, so a value may only go to a later part"
    )


def test_a_part_that_does_not_exist_is_refused(halves):
    with pytest.raises(ValueError, match="parts 0 to 2, expected 0 to 1"):
        replace(halves, part_of=np.array([0, 0, 0, 1, 2, 0], np.int32))


def test_a_column_of_another_length_is_refused(halves):
    with pytest.raises(ValueError, match="1 rows in a column, 2 parts"):
        replace(halves, seconds=np.ones(1))
    with pytest.raises(ValueError, match="5 rows in a column, 6 names"):
        replace(halves, copies=np.ones(5, np.int32))


def test_imbalance_is_the_greatest_over_the_mean_less_one():
    assert imbalance(np.array([1.0, 2.0, 3.0])) == 0.5
    assert imbalance(np.zeros(3)) == 0.0


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (999, "999 B"), (4100, "4.1 kB"), (18_870_000, "18.9 MB"), (2 * 10**9, "2.0 GB")]
)
def test_bytes_are_said_in_words(count, words):
    assert megabytes(count) == words
