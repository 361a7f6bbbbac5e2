"""The timeline view in a real JupyterLab: mouse, wheel and keyboard move it, what is selected reaches the kernel."""

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import v4

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ANSWER_MS = 15_000
DATA = Path(__file__).parents[1] / "data"

SHOW = f"""
import kit
from widgets import TimelineView
timeline = kit.read([{str(DATA)!r} + f"/h200_ddp_eager_rank{{rank}}.json.gz" for rank in (0, 1)], cache=False)
view = TimelineView(timeline)
view
"""
ASK = """
import json
print("KIT " + json.dumps([view.selected, view.window, view.table[0], len(view.details)]))
view.selected = -1
"""


def shown(page: Any) -> tuple[float, float]:
    frame = page.locator(".kit-timeline-frame")
    return float(frame.get_attribute("data-from")), float(frame.get_attribute("data-to"))


def length(page: Any) -> float:
    first, last = shown(page)
    return last - first


def test_it_zooms_pans_selects_and_measures_a_range(notebook_page: Any, lab: Any) -> None:
    from playwright.sync_api import expect

    cells = [v4.new_code_cell(SHOW), v4.new_code_cell(ASK, metadata={"tags": ["ask"]})]
    notebook = v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, Path(lab.folder) / "timeline.ipynb")
    notebook_page.open("timeline.ipynb")
    notebook_page.run_until("ask")
    assert notebook_page.find_error_text() == ""
    page = notebook_page.page
    view, canvas = page.locator(".kit-timeline"), page.locator(".kit-timeline canvas[tabindex]")
    canvas.wait_for(state="visible", timeout=ANSWER_MS)
    box = canvas.bounding_box()
    x, y = box["x"] + 500, box["y"] + 36
    whole = length(page)
    notebook_page.photograph("timeline", view)

    canvas.focus()
    for _ in range(4):
        page.keyboard.press("+")
    assert length(page) == pytest.approx(whole / 1.25**4, rel=0.01)
    first, _ = shown(page)
    page.keyboard.press("ArrowRight")
    assert shown(page)[0] > first
    box = canvas.bounding_box()
    x, y = box["x"] + 500, box["y"] + 36
    first, _ = shown(page)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 80, y, steps=4)
    page.mouse.up()
    assert shown(page)[0] < first  # what was under the pointer went with it
    before = length(page)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    page.wait_for_function(f"() => {{ const d = document.querySelector('.kit-timeline-frame').dataset; "
                           f"return d.to - d.from < {before * 0.85} }}")  # fmt: skip
    page.keyboard.press("Home")
    assert length(page) == pytest.approx(whole, rel=1e-6)

    page.keyboard.down("Shift")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 200, y, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    expect(view.locator("caption")).to_contain_text(" ms", timeout=ANSWER_MS)

    search = view.get_by_label("Search events by name")
    search.fill("AllReduce")
    expect(view.locator(".kit-timeline-count")).to_have_text("56 found")
    search.press("Enter")
    expect(view.locator(".kit-timeline-details")).to_contain_text("transfer", timeout=ANSWER_MS)
    canvas.focus()
    page.keyboard.press("z")
    assert length(page) < whole / 4
    chosen = int(page.locator(".kit-timeline-frame").get_attribute("data-selected"))
    page.keyboard.press("Shift+ArrowRight")
    following = int(page.locator(".kit-timeline-frame").get_attribute("data-selected"))
    assert chosen != following >= 0
    expect(view.locator(".kit-timeline-details")).to_contain_text("transfer", timeout=ANSWER_MS)
    notebook_page.photograph("timeline-near", view)
    page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"
    )

    notebook_page.run_tagged("ask")
    assert notebook_page.find_error_text() == ""
    said = page.locator(".jp-OutputArea-output pre").filter(has_text="KIT ").inner_text()
    selected, window, title, details = json.loads(said.partition("KIT ")[2])
    assert selected == following
    assert title == f"{window[0]:.3f} to {window[1]:.3f} ms"
    assert details > 5
    # The cell took the selection back, and the page follows.
    expect(page.locator(".kit-timeline-frame")).to_have_attribute("data-selected", "-1", timeout=ANSWER_MS)
    expect(view.locator(".kit-timeline-hint")).to_be_visible()
