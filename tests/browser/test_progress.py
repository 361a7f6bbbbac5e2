"""Progress rows in a real JupyterLab: one display below the cell, updated from a thread."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import v4

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WORK = """
import threading, time
from kit import progress
from widgets import show_progress
show_progress()

def work():
    with progress.task('compile the step', total=4) as task:
        for stage in ('trace', 'passes', 'lower', 'load'):
            time.sleep(0.9)
            task.advance(stage)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def test_long_work_shows_one_row_that_ends_with_its_seconds(notebook_page: Any, lab: Any) -> None:
    from playwright.sync_api import expect

    notebook = v4.new_notebook(cells=[v4.new_code_cell(WORK)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, Path(lab.folder) / "progress.ipynb")
    notebook_page.open("progress.ipynb")
    notebook_page.run_all()
    page = notebook_page.page
    bar = page.get_by_role("progressbar", name=re.compile(r"^compile the step: finished in 3\.\d s$"))
    expect(bar).to_be_visible(timeout=15_000)
    assert page.locator(".jp-OutputArea progress").count() == 1
    notebook_page.photograph("progress", page.locator(".jp-OutputArea-output:has(progress)").first)
