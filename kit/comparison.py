"""Compare two records of one kind, field by field.

Rooms that know more (graphs before and after a pass) have tables of their own; this answers for
every record, so that a saved run can be held against today's.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kit.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field in which two records differ, in words."""

    field: str
    left: str
    right: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What differs between two records of one kind; false when they say the same."""

    kind: str
    rows: tuple[Difference, ...]

    def __bool__(self) -> bool:
        return bool(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Difference]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return f"Comparison of two {self.kind} records: {len(self.rows) or 'no'} differences"

    def __str__(self) -> str:
        return f"{self!r}\n{table(self)}" if self.rows else repr(self)

    def _repr_html_(self) -> str:
        return table(self)._repr_html_() if self.rows else f"<p>{self!r}</p>"


def table(comparison: Comparison) -> Table:
    """One row a difference."""
    rows = tuple((row.field, row.left, row.right) for row in comparison.rows)
    return Table(head=("what", "left", "right"), rows=rows, left=(0, 1, 2))


def differences(left: Any, right: Any) -> tuple[Difference, ...]:
    """The fields in which two records of one kind differ; empty when they say the same.

    Raises `TypeError` when they are not two records of one kind.
    """
    if type(left) is not type(right) or not dataclasses.is_dataclass(left):
        raise TypeError(
            f"compare() got a {type(left).__name__} and a {type(right).__name__}; expected two records of one kind"
        )
    found = []
    for field in dataclasses.fields(left):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if not _same(a, b):
            found.append(Difference(field=field.name, left=_text(a, b), right=_text(b, a)))
    return tuple(found)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.shape == b.shape and a.dtype == b.dtype and bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    return bool(a == b)


def _text(value: Any, other: Any) -> str:
    """A value in few words: a number as it is, a column by its length and sum, a list by its size."""
    if isinstance(value, np.ndarray):
        total = f", sum {value.sum():.6g}" if value.dtype.kind in "iuf" and value.size else ""
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]{total}"
    if isinstance(value, tuple | list):
        others = other if isinstance(other, tuple | list) else ()
        rows = [n for n, item in enumerate(value) if n >= len(others) or item != others[n]]
        first = f", first difference at {rows[0]}: {str(value[rows[0]])[:80]}" if rows else ""
        return f"{len(value)} items{first}"
    return str(value)[:120]
