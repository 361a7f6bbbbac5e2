"""The graph picture in a real JupyterLab: zoom by key, button and wheel; nothing in a picture runs."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import v4

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# A real capture, because what is to be read is a real picture.
CAPTURE = """
import torch, kit
from widgets import GraphPicture

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))

model = torch.nn.Sequential(*[Block() for _ in range(6)], torch.nn.LayerNorm(32))
graph = kit.capture(model, torch.randn(4, 32)).graphs[0]
picture = GraphPicture(graph, title='six blocks')
picture
"""


def zoom_of(page: Any) -> float:
    return float(page.locator(".kit-graph-frame").get_attribute("data-zoom"))


def test_the_picture_zooms_by_key_button_and_wheel_and_runs_nothing(notebook_page: Any, lab: Any) -> None:
    cells = [
        v4.new_code_cell(CAPTURE),
        v4.new_code_cell(
            "picture.svg = picture.svg.replace('</svg>', "
            '\'<script>window.kitRan = 666</script><g onclick="x" id="bad"/></svg>\')'
        ),
    ]
    notebook = v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, Path(lab.folder) / "graph.ipynb")
    notebook_page.open("graph.ipynb")
    notebook_page.run_all()
    assert notebook_page.find_error_text() == ""
    page = notebook_page.page
    frame = page.locator(".kit-graph-frame")
    frame.locator("#bad").wait_for(state="attached", timeout=15_000)
    assert frame.locator("script").count() == 0
    assert frame.locator("[onclick]").count() == 0
    assert frame.get_attribute("aria-label").startswith("Graph(")

    fitted = zoom_of(page)
    frame.focus()
    page.keyboard.press("+")
    assert zoom_of(page) == pytest.approx(fitted * 1.25, rel=0.01)
    page.keyboard.press("0")
    assert zoom_of(page) == pytest.approx(fitted, rel=0.01)
    page.get_by_role("button", name="Zoom out").click()
    assert zoom_of(page) == pytest.approx(fitted / 1.25, rel=0.01)
    page.get_by_role("button", name="Fit the picture").click()

    frame.hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    page.wait_for_function(
        f"() => Math.abs(document.querySelector('.kit-graph-frame').dataset.zoom - {fitted * 1.25}) < 0.02"
    )
    page.get_by_role("button", name="Fit the picture").click()
    notebook_page.photograph("graph", page.locator(".kit-graph").first)
