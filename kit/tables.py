"""A small table, as text and as HTML, for everything that the kit shows in rows.

Text is what a terminal, a screen reader and a test see; HTML is the same cells, escaped, in the
colours of the page around it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

# A word this long (code, a kernel's name) may break behind these, else it would push columns off the page.
_LONG_WORD = re.compile(r"\S{24,}")
_PIECE = re.compile(r"[^(.,/_:]+[(.,/_:]*|[(.,/_:]+")
_LEAST_WIDTH = 19  # of words: beside many numbers they would get a line for each
_CELL = "padding: 0.15em 0.8em; font-variant-numeric: tabular-nums; text-align: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text under column titles; `notes` are sentences under them.

    `left`: columns that hold words and are set flush left, the others are numbers.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    left: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.head):
                raise ValueError(f"a row has {len(row)} cells {row}, expected {len(self.head)} as the head {self.head}")

    def __repr__(self) -> str:
        return f"Table({len(self.rows)} rows x {len(self.head)} columns)"

    def __str__(self) -> str:
        lines = [self.head, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.head))]
        text = ["  ".join(self._aligned(line, widths)).rstrip() for line in lines]
        return "\n".join([*text, *(f"- {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col" style="{self._style(n)}">{escape(t)}</th>' for n, t in enumerate(self.head))
        body = "".join(
            "<tr>"
            + "".join(f'<td style="{self._style(n, "nowrap")}">{_html(t)}</td>' for n, t in enumerate(row))
            + "</tr>"
            for row in self.rows
        )
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return table + (f"<ul>{notes}</ul>" if notes else "")

    def _aligned(self, line: Sequence[str], widths: Sequence[int]) -> list[str]:
        return [
            cell.ljust(width) if column in self.left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]

    def _style(self, column: int, wrap: str = "normal") -> str:
        if column not in self.left:
            return _CELL + f"right; white-space: {wrap}"
        longest = max((len(row[column]) for row in self.rows), default=0)
        return _CELL + f"left; min-width: {min(longest, _LEAST_WIDTH)}ch"


def _html(text: str) -> str:
    """A cell's text, escaped, with places where long words may break."""
    html, end = "", 0
    for word in _LONG_WORD.finditer(text):
        html += escape(text[end : word.start()]) + "<wbr>".join(map(escape, _PIECE.findall(word[0])))
        end = word.end()
    return html + escape(text[end:])
