"""The tuner in a real JupyterLab: keyboard, mouse, buttons, errors, both themes."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import v4

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ANSWER_MS = 15_000

# A measure of the test's own: no ranks, so what is tested here is the widget and the kernel behind it.
SETUP = """
import time
from kit.tuning.record import Measurement, Setting
from widgets.tuner import Tuner

def measure(setting):
    time.sleep(0.3)
    if setting.micro_batch == 32:
        return Measurement(setting=setting, seconds_per_step=0, samples_per_second=0, peak_bytes=0,
                           peak_method='measured', failure='out of memory on rank 1')
    rate = 900 * setting.micro_batch / (setting.micro_batch + 6)
    return Measurement(setting=setting, seconds_per_step=64 / rate, samples_per_second=rate,
                       peak_bytes=(300 << 20) + (11 << 20) * setting.micro_batch, peak_method='measured')

def apply(setting):
    if setting.micro_batch == 1:
        raise RuntimeError('rank 1: the step could not be built')
    return f'Training goes on with micro-batch {setting.micro_batch}.'

settings = [Setting(micro_batch=m, accumulation=32 // m) for m in (1, 2, 4, 8, 16, 32)]
"""
SHOW = "tuner = Tuner(settings, measure, apply, global_batch=64, world_size=2)\ntuner"


@pytest.fixture
def tuner_page(notebook_page: Any, lab: Any) -> Any:
    """A page with a tuner on it, not touched yet."""
    notebook = v4.new_notebook(cells=[v4.new_code_cell(SETUP), v4.new_code_cell(SHOW), v4.new_code_cell("0")])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.cells[-1].metadata["tags"] = ["asked"]
    nbformat.write(notebook, Path(lab.folder) / "tuner.ipynb")
    notebook_page.open("tuner.ipynb")
    notebook_page.run_all()
    assert notebook_page.find_error_text() == ""
    return notebook_page


def test_the_tuner_answers_keyboard_mouse_and_buttons_in_both_themes(tuner_page: Any) -> None:
    from playwright.sync_api import expect

    page = tuner_page.page
    slider = page.get_by_role("slider", name="Micro-batch")
    expect(slider).to_have_value("0", timeout=ANSWER_MS)

    slider.focus()
    page.keyboard.press("ArrowRight")
    expect_plan(page, "micro-batch 2 x accumulation 16: 32 samples on each of 2 ranks, 64 in all")
    expect(slider).to_have_attribute("aria-valuetext", re.compile("^micro-batch 2 x"))

    drag(page, slider, share=3 / 5)
    expect_plan(page, "micro-batch 8 x accumulation 4: 32 samples on each of 2 ranks, 64 in all")

    page.get_by_role("button", name="Measure", exact=True).click()
    expect(page.get_by_role("status")).to_have_text(
        "Measured micro-batch 8: 514.3 samples/s, 388.0 MiB.", timeout=ANSWER_MS
    )

    measure_all = page.get_by_role("button", name="Measure all")
    expect(measure_all).to_be_enabled(timeout=ANSWER_MS)  # a moment after the answer; a disabled one takes no focus
    measure_all.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("row", name=re.compile("16 .* best"))).to_be_visible(timeout=ANSWER_MS)
    expect(page.get_by_role("row", name=re.compile("out of memory on rank 1"))).to_be_visible(timeout=ANSWER_MS)
    assert page.locator("svg[role=img] circle[r='5']").count() == 5

    apply = page.get_by_role("button", name="Apply")
    expect(apply).to_be_enabled(timeout=ANSWER_MS)
    apply.click()
    expect(page.get_by_role("status")).to_have_text("Training goes on with micro-batch 8.", timeout=ANSWER_MS)

    drag(page, slider, share=0)
    apply.click()
    alert = page.get_by_role("alert")
    expect(alert).to_have_text("RuntimeError: rank 1: the step could not be built", timeout=ANSWER_MS)
    expect(apply).to_be_enabled()

    drag(page, slider, share=3 / 5)
    tuner_page.photograph("tuner", page.locator(".jp-OutputArea-output:has(.kit-slider)").first)


def test_the_kernel_answers_while_settings_are_measured(tuner_page: Any) -> None:
    from playwright.sync_api import expect

    page = tuner_page.page
    page.get_by_role("button", name="Measure all").click()
    expect(page.get_by_role("button", name="Stop")).to_be_enabled(timeout=ANSWER_MS)
    page.evaluate(
        "() => { const n = window.jupyterapp.shell.currentWidget.content; "
        "n.widgets[2].model.sharedModel.setSource('len(tuner.report.measurements) < 6') }"
    )
    tuner_page.run_tagged("asked")
    expect(page.locator(".jp-OutputArea-executeResult", has_text="True")).to_be_visible(timeout=ANSWER_MS)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_have_text(re.compile(r"^Stopped after [1-5] of 6"), timeout=ANSWER_MS)


def expect_plan(page: Any, words: str) -> None:
    """Text that only the kernel computes: the reading aid of the slider has it too, but hidden."""
    from playwright.sync_api import expect

    expect(page.get_by_text(words, exact=True)).to_be_visible(timeout=ANSWER_MS)


def drag(page: Any, slider: Any, *, share: float) -> None:
    """Move the handle with the mouse to a share of the scale; the handle is 16 pixels wide."""
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    now = float(slider.input_value()) / float(slider.get_attribute("max"))
    y = box["y"] + box["height"] / 2

    def place(at: float) -> float:
        return float(box["x"] + 8 + at * (box["width"] - 16))

    page.mouse.move(place(now), y)
    page.mouse.down()
    page.mouse.move(place(share), y, steps=8)
    page.mouse.up()
