"""The rank panel in a real JupyterLab, while a cell waits for ranks: live rows, buttons, both themes."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import v4

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ANSWER_MS = 20_000

SETUP = """
import kit
from widgets import RankPanel
%load_ext kit
ranks = kit.launch(2, threads=1, check_collectives=False)
"""
STUCK = """%%ranks
def train():
    dist.all_reduce(torch.ones(4))
if rank == 0:
    train()
else:
    import time; time.sleep(60)"""
KILL = "import os, signal\nos.kill(ranks.pids[1], signal.SIGKILL)"
CLOSE = "ranks.close()"


@pytest.fixture
def panel_page(notebook_page: Any, lab: Any) -> Any:
    """A page with a panel on it, two idle ranks, and cells that are not run yet."""
    notebook = v4.new_notebook()
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    for tag, source in [
        ("setup", SETUP),
        ("panel", "RankPanel(ranks)"),
        ("stuck", STUCK),
        ("kill", KILL),
        ("close", CLOSE),
    ]:
        notebook.cells.append(v4.new_code_cell(source, metadata={"tags": [tag]}))
    nbformat.write(notebook, Path(lab.folder) / "ranks.ipynb")
    notebook_page.open("ranks.ipynb")
    notebook_page.run_until("stuck")
    assert notebook_page.find_error_text() == ""
    return notebook_page


def begin(panel_page: Any, tag: str) -> None:
    """Run a cell without waiting for its end."""
    place = {"stuck": 2}[tag]
    panel_page.page.evaluate(
        "place => { const n = window.jupyterapp.shell.currentWidget.content; n.activeCellIndex = place; "
        "window.jupyterapp.commands.execute('notebook:run-cell'); n.scrollToItem(1) }",
        place,
    )


def test_the_panel_is_live_and_its_buttons_work_while_a_cell_waits(panel_page: Any) -> None:
    from playwright.sync_api import expect

    page = panel_page.page
    panel = page.locator(".kit-ranks")
    interrupt = panel.get_by_role("button", name="Interrupt")
    expect(panel.get_by_role("row", name=re.compile("^0 . idle"))).to_be_visible(timeout=ANSWER_MS)
    expect(interrupt).to_be_disabled()

    begin(panel_page, "stuck")
    waits = panel.get_by_role(
        "row", name=re.compile(r"^0 . in collective .*cell 3 line 3.*all_reduce number 2, float32\[4\]")
    )
    expect(waits).to_be_visible(timeout=ANSWER_MS)
    expect(panel.get_by_role("row", name=re.compile(r"^1 . waiting .*cell 3 line 7"))).to_be_visible()
    expect(panel.get_by_text("rank 1 has not come to it", exact=False)).to_be_visible()
    expect(panel.get_by_role("row", name=re.compile("^0 .* 0:02 "))).to_be_visible(timeout=ANSWER_MS)

    stacks = panel.get_by_role("button", name="Stacks")
    stacks.focus()
    page.keyboard.press("Enter")
    expect(stacks).to_have_attribute("aria-expanded", "true")
    expect(panel.get_by_label("Stacks").get_by_text("line 5: train()", exact=False)).to_be_visible()
    panel_page.photograph("ranks-stuck", panel)

    interrupt.focus()
    page.keyboard.press("Enter")
    expect(panel.get_by_role("status")).to_have_text("Interrupted.", timeout=ANSWER_MS)
    expect(panel.get_by_role("row", name=re.compile("^0 . idle"))).to_be_visible(timeout=ANSWER_MS)
    page.evaluate("() => window.jupyterapp.shell.currentWidget.content.scrollToItem(2)")
    told = page.get_by_text("Where the ranks were: rank 0 waits in all_reduce number 2, float32[4], cell 3 line 3")
    expect(told).to_be_visible(timeout=ANSWER_MS)
    page.evaluate("() => window.jupyterapp.shell.currentWidget.content.scrollToItem(1)")

    panel_page.run_tagged("kill")
    replace = panel.get_by_role("button", name="Replace rank 1")
    expect(replace).to_be_visible(timeout=ANSWER_MS)
    panel_page.photograph("ranks-dead", panel)
    replace.click()
    expect(panel.get_by_role("status")).to_have_text(re.compile(r"^rank 1 was started anew in"), timeout=ANSWER_MS)
    expect(panel.get_by_role("row", name=re.compile("^1 . idle"))).to_be_visible(timeout=ANSWER_MS)

    panel_page.run_tagged("close")
    expect(panel.get_by_text("The group is closed.")).to_be_visible(timeout=ANSWER_MS)
