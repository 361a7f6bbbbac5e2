"""What a measure gives: rows of plain numbers that show themselves as a table.

One class serves all measures, so that each of them is only a row's definition and the code that fills it. The unit of
a number is the end of its field's name: `_ns` nanoseconds (shown in milliseconds), `_share` 0 to 1 (shown in per
cent), `_bytes`, `_gbps` (10**9 bytes a second). None is what could not be measured.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Generic, TypeVar, overload

from kit.tables import Table

Row = TypeVar("Row")
MOST_SHOWN = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(Generic[Row]):
    """Rows of one measure; `by` names the parts of a row's `key` when it has one, `notes` say what to know of them."""

    name: str
    rows: tuple[Row, ...]
    by: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        return self.rows[index]

    def first(self, count: int) -> "Measured[Row]":
        """The first `count` rows; a note says how many are left out."""
        more = len(self.rows) - count
        notes = (*self.notes, f"{more} more rows are not shown") if more > 0 else self.notes
        return replace(self, rows=self.rows[:count], notes=notes)

    def __repr__(self) -> str:
        return f"Measured({self.name}: {len(self.rows)} rows)"

    def __str__(self) -> str:
        return str(table(self))

    def _repr_html_(self) -> str:
        return table(self)._repr_html_()

    def to_pandas(self) -> Any:
        """The rows as a pandas frame, numbers in the units of their names.

        Raises `ImportError` without pandas, which the kit does not need for anything else.
        """
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas; pip install pandas, or use .rows") from error
        names = _fields(self)
        return pandas.DataFrame([_values(self, row) for row in self.rows], columns=[*self.by, *names])


def table(measured: Measured[Any], *, most: int = MOST_SHOWN) -> Table:
    """The first `most` rows as text; the notes say how many are not shown, and which columns no row has a value for."""
    every = _fields(measured)
    names = [name for name in every if any(getattr(row, name) not in (None, "") for row in measured.rows)]
    head = (*measured.by, *(_title(name) for name in names))
    cells = tuple(
        (
            *(cell(part, value) for part, value in zip(measured.by, row.key if measured.by else (), strict=True)),
            *(cell(name, getattr(row, name)) for name in names),
        )
        for row in measured.rows[:most]
    )
    unknown = [_title(n) for n in every if n not in names and any(getattr(row, n) is None for row in measured.rows)]
    more = len(measured.rows) - most
    notes = (
        *measured.notes,
        *((f"left out, as no row has a value: {', '.join(unknown)}",) if unknown else ()),
        *((f"{more} more rows are not shown",) if more > 0 else ()),
    )
    if not measured.rows and not notes:
        notes = (f"no {measured.name} in this timeline",)
    first = measured.rows[0] if measured.rows else None
    words = [n for n, name in enumerate(names) if first is not None and isinstance(getattr(first, name), str)]
    return Table(
        head=head, rows=cells, notes=notes, left=(*range(len(measured.by)), *(len(measured.by) + n for n in words))
    )


def cell(name: str, value: Any) -> str:
    """A value as text, by the unit that its name ends with."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(cell(name, item) for item in value)
    if isinstance(value, str):
        return value if len(value) <= 72 else value[:69] + "..."
    if name.endswith("_ns"):
        return f"{value / 1e6:.3f}"
    if name.endswith("share"):
        return f"{100 * value:.1f} %"
    if name.endswith("_bytes"):
        return f"{value:,}"
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def _title(name: str) -> str:
    if name.endswith("_ns"):
        return name[:-3].replace("_", " ") + " ms"
    if name.endswith("_gbps"):
        return name[:-5].replace("_", " ") + " GB/s"
    return name.removesuffix("_share").replace("_bytes", " bytes").replace("_", " ")


def _fields(measured: Measured[Any]) -> list[str]:
    if not measured.rows:
        return []
    return [field.name for field in dataclasses.fields(measured.rows[0]) if not (measured.by and field.name == "key")]


def _values(measured: Measured[Any], row: Any) -> list[Any]:
    key = list(row.key) if measured.by else []
    return [*key, *(getattr(row, name) for name in _fields(measured))]
