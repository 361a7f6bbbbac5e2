"""Every notebook, as it is committed and as it runs from top to bottom under papermill.

What a notebook starts is told by an environment variable that its kernel and all below it inherit,
so that orphans are found whatever their name or group.
"""

import json
import os
import secrets
import time
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from kit.export_html import WIDGET_VIEW
from kit.run_notebook import NotebookRun, NotebookRunError, refuse_unknown_parameters, run_notebook

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
RUN_SECONDS = 120
END_SECONDS = 5
MAX_CELL_LINES = 20
# What make test runs them with; names are checked against the notebook. None given: its own small defaults.
# Fewer layers: the same graphs, shorter. With its own 32 the notebook took 80 CPU-seconds, 110 s on a loaded machine.
PARAMETERS: dict[str, dict[str, Any]] = {"03_static_step": {"layers": 1}, "04_scale": {"layers": 4, "worlds": [8, 64]}}

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def tags_of(cell: Any) -> list[str]:
    return list(cell.metadata.get("tags", []))


def test_there_is_a_quickstart() -> None:
    assert [path.name for path in NOTEBOOKS][:1] == ["01_quickstart.ipynb"]


@every_notebook
def test_no_outputs_are_committed(path: Path) -> None:
    notebook = read(path)
    kept = [n for n, cell in enumerate(notebook.cells) if cell.get("outputs") or cell.get("execution_count")]
    assert kept == [], f"cells {kept} of {path.name} keep outputs: run nbstripout on it"
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}


@every_notebook
def test_the_kernel_is_python3(path: Path) -> None:
    assert read(path).metadata.kernelspec.name == "python3"


@every_notebook
def test_one_cell_holds_the_parameters_and_one_the_findings(path: Path) -> None:
    tags = [tag for cell in read(path).cells for tag in tags_of(cell)]
    assert tags.count("parameters") == 1
    assert tags.count("findings") == 1
    assert "raises-exception" not in tags


@every_notebook
def test_cells_are_short(path: Path) -> None:
    long = [
        (n, len(lines))
        for n, cell in enumerate(read(path).cells)
        if cell.cell_type == "code"
        and not cell.source.startswith("%%ranks")  # a cell of the ranks may define the model they share
        and len(lines := [line for line in cell.source.splitlines() if line.strip()]) > MAX_CELL_LINES
    ]
    assert long == [], f"cells too long to read: {long}"


@every_notebook
def test_the_parameters_of_the_tests_are_parameters_of_the_notebook(path: Path) -> None:
    refuse_unknown_parameters(path, PARAMETERS.get(path.stem, {}))
    with pytest.raises(NotebookRunError, match="has no parameter wrold_size; expected one of "):
        refuse_unknown_parameters(path, {"wrold_size": 2})


@pytest.mark.notebook
@pytest.mark.slow
@every_notebook
def test_it_runs_finds_something_and_leaves_no_process(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = secrets.token_hex(8)
    monkeypatch.setenv("KIT_NOTEBOOK_RUN", mark)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    run = run_notebook(path, out=tmp_path, parameters=PARAMETERS.get(path.stem, {}))
    monkeypatch.delenv("KIT_NOTEBOOK_RUN")
    left = wait_for_end(mark)
    assert left == [], f"{path.name} left processes running"
    assert run.findings, "its findings cell printed nothing"
    print(f"{path.name}: {run.seconds:.0f} s\n{run.findings}")
    assert run.seconds < RUN_SECONDS
    check_outputs(run)


def check_outputs(run: NotebookRun) -> None:
    """Every widget left a picture or a table too, and the page asks no other machine."""
    for cell in read(run.notebook).cells:
        for output in cell.get("outputs", []):
            shown = output.get("data", {})
            if WIDGET_VIEW in shown:
                assert {"text/html", "image/svg+xml"} & set(shown), f"a widget without a fallback: {cell.source}"
    page = run.page.read_text()
    assert WIDGET_VIEW not in page
    assert "cdnjs" not in page
    assert "unpkg" not in page


def wait_for_end(mark: str, *, seconds: float = END_SECONDS) -> list[str]:
    """Command lines of marked processes that are still there after a while; they are ended."""
    end = time.monotonic() + seconds
    while (left := find_marked(mark)) and time.monotonic() < end:
        time.sleep(0.2)
    for process in left:
        process.kill()
    return [json.dumps(process.info["cmdline"]) for process in left]


def find_marked(mark: str) -> list[psutil.Process]:
    """Living processes that inherited the mark; this one is none of them."""
    found = []
    for process in psutil.process_iter(["pid", "status", "cmdline"]):
        if process.pid == os.getpid() or process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        try:
            if process.environ().get("KIT_NOTEBOOK_RUN") == mark:
                found.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def test_a_process_left_running_is_found_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = secrets.token_hex(8)
    monkeypatch.setenv("KIT_NOTEBOOK_RUN", mark)
    left = psutil.Popen(["sleep", "60"])
    monkeypatch.delenv("KIT_NOTEBOOK_RUN")
    try:
        assert wait_for_end(mark, seconds=0) == ['["sleep", "60"]']
    finally:
        left.kill()
        left.wait()
