"""A module that is edited between two cells is never silently stale."""

from pathlib import Path

import pytest

from kit.ranks.errors import RankError
from kit.ranks.group import Ranks

Line = tuple[int, str, str]
OLD = "VALUE = 1\ndef answer():\n    return VALUE\nclass Thing:\n    size = 1\n"
NEW = OLD.replace("1", "2")  # as long as the old text, and written within the same second
NOTE = (
    "note: mine was edited after ranks 0, 1 imported it, and the old code has run; ranks.reload() loads it anew, "
    "ranks.autoreload = True before every cell"
)


@pytest.fixture
def module(pair: Ranks, tmp_path: Path) -> Path:
    """A module of the person's that both ranks have imported."""
    path = tmp_path / "mine.py"
    path.write_text(OLD)
    pair.execute(
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport mine\nfrom mine import answer as ask, Thing"
    )
    return path


def notes(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line[2].startswith("note:")]


def test_an_edited_module_is_told_once_for_all_ranks(pair: Ranks, module: Path, lines: list[Line]) -> None:
    assert pair.execute("ask()") == [1, 1]
    assert notes(lines) == []
    module.write_text(NEW)
    assert pair.execute("ask()") == [1, 1]
    assert notes(lines) == [(0, "stderr", NOTE)]
    pair.execute("ask()")
    assert len(notes(lines)) == 1, "told once for each edit"
    module.write_text(OLD + "# again\n")
    pair.execute("ask()")
    assert len(notes(lines)) == 2


def test_an_error_of_stale_code_comes_with_the_note(pair: Ranks, module: Path, lines: list[Line]) -> None:
    module.write_text(NEW)
    with pytest.raises(RankError):
        pair.execute("mine.not_there_yet()")
    assert notes(lines) == [(0, "stderr", NOTE)]


def test_reload_exchanges_functions_and_classes_imported_by_name(pair: Ranks, module: Path, lines: list[Line]) -> None:
    module.write_text(NEW)
    assert pair.reload() == ("mine",)
    assert pair.execute("mine.answer(), ask(), Thing.size, mine.VALUE") == [(2, 2, 2, 2)] * 2
    assert notes(lines) == []
    assert pair.reload() == ()


def test_with_autoreload_a_cell_runs_what_is_on_disk(pair: Ranks, module: Path, lines: list[Line]) -> None:
    pair.autoreload = True
    module.write_text(NEW)
    assert pair.execute("ask()") == [2, 2]
    assert notes(lines) == []


def test_new_text_that_is_no_python_is_an_error_and_keeps_the_old(pair: Ranks, module: Path) -> None:
    module.write_text("def answer(:\n")
    with pytest.raises(RankError, match="SyntaxError"):
        pair.reload()
    assert pair.execute("ask()") == [1, 1]


def test_a_deleted_module_goes_on_without_a_note(pair: Ranks, module: Path, lines: list[Line]) -> None:
    module.unlink()
    assert pair.execute("ask()") == [1, 1]
    assert notes(lines) == []
