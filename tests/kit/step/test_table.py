"""A plan and its check as tables."""

from dataclasses import replace

import pytest

from kit.display import register, table
from kit.step.record import Breach, Check, Finding, Place


@pytest.fixture
def plan(plan_of):
    return plan_of([("backward", 0.0, 0.002), ("waiting", 0.002, 0.003)], [(0.001, 0.003, 0.001)])


def test_a_row_has_kind_group_bytes_parameters_times_and_line(plan):
    shown = table(plan)
    assert dict(zip(shown.head, shown.rows[0], strict=True)) == {
        "#": "0", "collective": "all_reduce", "phase": "backward", "group": "0 (2 ranks)", "put in": "0 B",
        "dtype": "float32", "parameters": "w0 +1", "start ms": "1.000", "end ms": "3.000", "exposed ms": "1.000",
        "module": "layer0", "line": "model.py:0: x",
    }  # fmt: skip
    assert "rates and times: chosen for the arithmetic" in shown.notes


def test_without_an_estimate_it_has_what_can_hide_a_collective(plan):
    assert table(replace(plan, estimate=None)).head[7:9] == ("compute before", "can hide it")


def test_a_line_keeps_its_code_whole_where_it_divides_and_says_where_it_is_cut(plan):
    sources = {"/home/a/model.py:3: x / y": "model.py:3: x / y", "/a/m.py:1: " + "x" * 99: "m.py:1: " + "x" * 61 + "…"}
    for source, line in sources.items():
        assert table(replace(plan, sends=(replace(plan.sends[0], source=source),))).rows[0][-1] == line


def test_a_check_shows_each_rule_and_the_path_where_it_breaks():
    def place(name, source):
        return Place(node=name, target="aten.mm.default", phase="backward", module="a", source=source)

    breach = Breach(what="w is reduced twice", path=(place("mm", "/home/a/model.py:3: x @ w"), place("all_reduce", "")))
    check = Check(findings=(Finding(rule="once", proved=2, breaches=(breach,)), Finding(rule="order", proved=5)))
    shown = table(check)
    assert shown.rows == (("once", "broken", "2", "1"), ("order", "holds", "5", "0"))
    assert shown.notes == ("w is reduced twice: mm (model.py:3: x @ w) -> all_reduce",)


def test_a_notebook_shows_a_plan_with_times_as_a_picture_and_a_table(plan):
    class Formatters(dict):
        def for_type(self, kind, show):
            self[kind] = show

    shown = Formatters()
    shell = type("Shell", (), {})()
    shell.display_formatter = type("F", (), {"formatters": {"text/html": shown}})()
    register(shell)
    made = plan
    assert "<svg" in shown[type(made)](made)
    assert "<svg" not in shown[type(made)](replace(made, estimate=None))
    assert "<table" in shown[Check](made.check())
