"""Running a notebook from the command line: outputs, findings, parameters, failing cells."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import v4

from kit import run_notebook as command
from kit.run_notebook import NotebookRunError, find_titles, read_findings, read_parameter, run_notebook


def write(path: Path, *sources: tuple[str, str]) -> Path:
    """A notebook of (tag, source) cells; the tag `markdown` makes a markdown cell."""
    cells: list[Any] = []
    for tag, source in sources:
        cell = v4.new_markdown_cell(source) if tag == "markdown" else v4.new_code_cell(source)
        cell.metadata["tags"] = [tag]
        cells.append(cell)
    notebook = v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)
    return path


@pytest.mark.notebook
def test_a_run_leaves_notebook_page_and_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(
        tmp_path / "small.ipynb",
        ("markdown", "# Small"),
        ("parameters", "steps = 1"),
        ("other", "import sys; print('not a finding')"),
        ("findings", "print('steps', steps)\nprint('noise', file=sys.stderr)\nsteps * 2"),
    )
    assert command.main([str(source), "--out", str(tmp_path / "out"), "-p", "steps", "21"]) == 0
    said = capsys.readouterr().out
    assert "steps 21\n42" in said
    assert "noise" not in said
    assert str(tmp_path / "out" / "small.ipynb") in said
    assert "steps 21" in (tmp_path / "out" / "small.html").read_text()


@pytest.mark.notebook
def test_a_cell_that_fails_is_named_with_its_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "bad.ipynb", ("parameters", "x = 1"), ("other", "raise ValueError('seen 3')"))
    assert command.main([str(source), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert f"{source}, cell 2: ValueError: seen 3" in said
    assert (tmp_path / "out" / "bad.ipynb").exists()


def test_an_unknown_parameter_is_refused_before_anything_runs(tmp_path: Path) -> None:
    source = write(tmp_path / "small.ipynb", ("parameters", "steps = 1\nranks = 2"))
    with pytest.raises(NotebookRunError) as caught:
        run_notebook(source, out=tmp_path / "out", parameters={"step": 3})
    assert str(caught.value) == f"{source} has no parameter step; expected one of steps, ranks"
    assert not (tmp_path / "out").exists()


def test_a_notebook_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotebookRunError, match=r"no notebook at .*none\.ipynb; run this from the root"):
        run_notebook(tmp_path / "none.ipynb", out=tmp_path)


def test_findings_are_empty_without_a_findings_cell(tmp_path: Path) -> None:
    assert read_findings(write(tmp_path / "small.ipynb", ("parameters", "x = 1"))) == ""


def test_a_cell_has_the_title_of_the_last_heading_above_it() -> None:
    cells = [
        v4.new_code_cell("0"),
        v4.new_markdown_cell("# One\ntext"),
        v4.new_code_cell("1"),
        v4.new_markdown_cell("only text"),
        v4.new_code_cell("2"),
        v4.new_markdown_cell("## Two\n### Three"),
    ]
    assert find_titles(cells) == ["", "One", "One", "One", "One", "Three"]


@pytest.mark.parametrize(
    ("text", "value"), [("2", 2), ("0.5", 0.5), ("true", True), ("cuda", "cuda"), ('"2"', "2"), ("[1, 2]", [1, 2])]
)
def test_a_parameter_is_read_as_json_or_else_as_text(text: str, value: object) -> None:
    assert read_parameter(text) == value
