"""The quickstart as a reader has it: run up to its tuner, move it, measure and apply on the ranks, close.

A smaller model than the notebook's own, which tests/notebooks runs: here the page is tested.
"""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

pytestmark = [pytest.mark.browser, pytest.mark.slow]

QUICKSTART = Path(__file__).parents[2] / "notebooks" / "01_quickstart.ipynb"
SMALLER = {"layers": 1, "width": 48, "context": 32, "steps": 20}
RUN_MS, MEASURE_MS, ANSWER_MS = 300_000, 120_000, 15_000


def test_the_tuner_of_the_quickstart_measures_and_applies_on_live_ranks(notebook_page: Any, lab: Any) -> None:
    from playwright.sync_api import expect

    notebook = parameterize_notebook(load_notebook_node(str(QUICKSTART)), SMALLER)
    nbformat.write(notebook, Path(lab.folder) / QUICKSTART.name)
    notebook_page.open(QUICKSTART.name)
    notebook_page.run_until("close", timeout_ms=RUN_MS)
    assert notebook_page.find_error_text() == ""

    page = notebook_page.page
    slider = page.get_by_role("slider", name="Micro-batch")
    expect(slider).to_be_visible(timeout=ANSWER_MS)
    slider.scroll_into_view_if_needed()
    last = int(slider.get_attribute("max"))
    assert last >= 1, "a tuner with one setting has nothing to move"

    slider.focus()
    page.keyboard.press("Home")
    wait_for_the_kernel(page, slider, index=0)
    page.keyboard.press("ArrowRight")
    wait_for_the_kernel(page, slider, index=1)

    box = slider.bounding_box()
    at = box["x"] + 8 + (box["width"] - 16) / last
    middle = box["y"] + box["height"] / 2
    page.mouse.move(at, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 8, middle, steps=8)
    page.mouse.up()
    wait_for_the_kernel(page, slider, index=0)

    status = page.locator(".jp-OutputArea-output:has(.kit-slider) [role=status]")
    page.get_by_role("button", name="Measure", exact=True).click()
    expect(status).to_have_text(re.compile(r"^Measured micro-batch \d+: "), timeout=MEASURE_MS)
    apply = page.get_by_role("button", name="Apply")
    expect(apply).to_be_enabled(timeout=ANSWER_MS)
    apply.click()
    expect(status).not_to_have_text(re.compile(r"^(Measured|Applying)"), timeout=MEASURE_MS)
    assert page.get_by_role("alert").count() == 0
    expect(apply).to_be_enabled(timeout=ANSWER_MS)
    notebook_page.photograph("quickstart-tuner", page.locator(".jp-OutputArea-output:has(.kit-slider)").first)

    notebook_page.run_tagged("close")
    assert notebook_page.find_error_text() == ""


def wait_for_the_kernel(page: Any, slider: Any, *, index: int) -> None:
    """The slider stands on a place, and the kernel has written the sentence of that place under it."""
    from playwright.sync_api import expect

    expect(slider).to_have_value(str(index), timeout=ANSWER_MS)
    plan = page.get_by_text(re.compile(r"^micro-batch \d+ x accumulation \d+"))
    expect(plan).to_have_text(slider.get_attribute("aria-valuetext"), timeout=ANSWER_MS)
