"""Completion in cells that run on the ranks: the names are those of the first rank, not of the notebook.

IPython hands a matcher the whole cell, so it is one of ours by its first line. Nothing is asked while a call is made.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from kit.ranks.group import Ranks

_OURS = re.compile(r"\s*%%ranks?\b([^\n]*)\n")
_DOTTED_BEFORE = re.compile(r"(?<![\w.)\]\"'])[^\W\d][\w.]*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions:
    """Words that can stand in the place of `fragment`, the text right before the cursor."""

    fragment: str
    words: tuple[str, ...]


def complete_cell(text: str, *, token: str, find_group: Callable[[str], Ranks | None]) -> Completions:
    """What can complete a cell whose text up to the cursor is `text`; no words when it is no cell of the ranks.

    `token` is what IPython takes for the word before the cursor, longer or shorter than the dotted name.
    `find_group` gives the group for the rest of the magic's line, or None.
    """
    ours = _OURS.match(text)
    group = find_group(ours[1]) if ours is not None else None
    found = _DOTTED_BEFORE.search(text)
    if group is None or found is None:
        return Completions(fragment="", words=())
    asked = found[0]
    skipped = max(0, len(asked) - len(token))
    return Completions(fragment=asked[skipped:], words=tuple(name[skipped:] for name in group.complete(asked)))


def text_before(text: str, *, line: int, column: int) -> str:
    """The text up to a place, both counted from 0."""
    lines = text.split("\n")[: line + 1]
    return "\n".join([*lines[:-1], lines[-1][:column]])
