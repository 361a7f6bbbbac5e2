import io
from dataclasses import replace

import numpy as np
import pytest

from kit.graph.record import Kind
from kit.partition.cut import cut
from kit.partition.report import crossing_table, findings, html, picture, shortfall, table


@pytest.fixture
def chain(make_graph, row):
    """Four nodes after an input; the last is called `head` in a module whose name needs escaping."""
    return make_graph(
        [
            row(name="x", kind=Kind.INPUT),
            row(name="w", kind=Kind.INPUT, parameter="tied.weight", nbytes=1000),
            row(name="a", reads=["x", "w"], nbytes=3_000_000, module="first", shape="float32[750000]"),
            row(name="b", reads=["a"], nbytes=2_000_000, module="<b>"),
            row(name="c", reads=["b"], nbytes=1_000_000),
            row(name="head", reads=["c", "w"], module="lm_head"),
        ],
        name="gpt & co",
    )


def test_the_table_has_a_row_a_stage(chain):
    shown = table(cut(chain, 2, seconds=[0, 0, 2e-3, 2e-3, 2e-3, 2e-3]))
    assert shown.head[:3] == ("stage", "measured ms", "against mean")
    assert shown.rows == (
        ("0", "4", "+0 %", "1.0 kB", "5.0 MB", "2", "0 B", "2.0 MB"),
        ("1", "4", "+0 %", "1.0 kB", "1.0 MB", "2", "2.0 MB", "0 B"),
    )


def test_modelled_figures_are_called_modelled_and_small_times_are_microseconds(chain):
    assert table(cut(chain, 2)).head[1] == "modelled us"


def test_the_crossing_values_come_with_their_place_in_the_model(chain):
    found = cut(chain, 4, seconds=[0, 0, 1, 1, 1, 1])
    assert crossing_table(found).rows == (
        ("a", "float32[750000]", "3.0 MB", "0", "1", "first", "model.py:7: y = f(x)"),
        ("b", "float32[1]", "2.0 MB", "1", "2", "<b>", "model.py:7: y = f(x)"),
        ("c", "float32[1]", "1.0 MB", "2", "3", "", "model.py:7: y = f(x)"),
    )


def test_values_beyond_the_limit_are_counted(chain):
    shown = crossing_table(cut(chain, 4, seconds=[0, 0, 1, 1, 1, 1]), limit=1)
    assert len(shown.rows) == 1
    assert shown.notes == ("2 more values are not shown, 3.0 MB together",)


def test_a_request_below_the_floor_says_what_was_asked_what_is_possible_and_what_to_change(chain):
    found = cut(chain, 4, seconds=[0, 0, 1, 1, 1, 3])
    assert shortfall(found) == (
        "asked for 5 % imbalance at k=4; head (lm_head) alone is 50 % of the time, best possible 100 %, "
        "reached 100 %; use k <= 2 or split that node by tensor parallelism"
    )
    assert shortfall(found) in findings(found)


def test_a_request_that_no_order_meets_says_what_was_reached(chain):
    found = cut(chain, 3, seconds=[0, 0, 1, 1, 1, 1])
    assert shortfall(found) == (
        "asked for 5 % imbalance at k=3; the better of two orders reached 50 %; use k <= 2 or eps=0.51"
    )
    assert cut(chain, 3, eps=0.51, seconds=[0, 0, 1, 1, 1, 1]).is_within_eps


def test_a_request_that_was_met_has_no_excuse(chain):
    assert not any(line.startswith("asked") for line in findings(cut(chain, 2, seconds=[0, 0, 1, 1, 1, 1])))


def test_both_targets_and_copied_parameters_are_said(chain):
    lines = findings(cut(chain, 2, seconds=[0, 0, 1, 1, 1, 3]))
    assert lines[1:] == (
        "33.3 % of 3 edges are cut (target below 15 %: not met); node counts differ by 50 % (target below 12 %: "
        "not met), memory by 99.9 %",
        'balance="count" aims at equal node counts; the slowest stage sets the pace, whatever its count',
        "tied.weight is held by parts 0, 1: the copy needs a summed gradient",
        "no contiguous cut of the order 'fx' within this balance crosses fewer bytes",
    )


def test_names_of_the_model_are_escaped(chain):
    text = html(cut(chain, 4, seconds=[0, 0, 1, 1, 1, 1]))
    assert "<b>" not in text
    assert "&lt;b&gt;" in text
    assert "gpt &amp; co" in text


def test_one_stage_has_nothing_that_crosses(chain):
    assert "Nothing crosses." in html(cut(chain, 1))


def test_the_picture_has_a_numbered_bar_a_stage_in_every_panel(chain):
    figure = picture(cut(chain, 4, seconds=[0, 0, 1, 1, 1, 3]))
    assert len(figure.axes) == 4
    for axes in figure.axes:
        assert len(axes.patches) == 4
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [f"stage {part}" for part in range(4)]
    times = [bar.get_width() for bar in figure.axes[0].patches]
    assert times == [1, 1, 1, 3]


def test_the_picture_draws_mean_and_floor(chain):
    axes = picture(cut(chain, 4, seconds=[0, 0, 1, 1, 1, 3])).axes[0]
    assert [line.get_xdata()[0] for line in axes.lines] == [1.5, 3.0]
    assert [line.get_linestyle() for line in axes.lines] == ["--", ":"]


def test_more_stages_than_colours_begin_again_and_keep_their_numbers(chain):
    found = cut(chain, 4, seconds=[0, 0, 1, 1, 1, 1])
    many = replace(
        found, parts=12, part_of=found.part_of, seconds=np.ones(12), bytes_of_memory=np.ones(12, int),
        bytes_of_parameters=np.zeros(12, int), node_counts=np.ones(12, int), bytes_received=np.zeros(12, int),
        bytes_sent=np.zeros(12, int),
    )  # fmt: skip
    figure, target = picture(many), io.BytesIO()
    figure.savefig(target, format="png")
    assert target.getvalue().startswith(b"\x89PNG")
    bars = figure.axes[0].patches
    assert bars[10].get_facecolor() == bars[0].get_facecolor() != bars[1].get_facecolor()
    assert figure.axes[0].get_yticklabels()[11].get_text() == "stage 11"
