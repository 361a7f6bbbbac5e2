"""The value of a cell is that of its last expression."""

from typing import Any

import pytest

from kit.ranks.cell import run_cell


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("1 + 1", 2),
        ("x = 3\nx", 3),
        ("x = 3", None),
        ("x = 3; x", 3),
        ("3;", None),
        ("3;  # a comment", None),
        ("3  # a comment; with a semicolon;", 3),
        ("'a;'", "a;"),
        ("'a#b;'", "a#b;"),
        ("3\n# last", 3),
        ("x = '#'; 3;", None),
        ("3;\n\n# last", None),
        ("", None),
        ("# only a comment", None),
        ("if True:\n    3", None),
    ],
)
def test_the_value_is_that_of_the_last_expression(source: str, value: Any) -> None:
    assert run_cell(source, "<value>", {}) == value


def test_names_stay_in_the_namespace_and_functions_see_them() -> None:
    namespace: dict[str, Any] = {}
    run_cell("a = 1\ndef f():\n    return a + b", "<first>", namespace)
    assert run_cell("b = 2\nf()", "<second>", namespace) == 3
