"""The picture of a plan: what stands on its two lanes, that nothing overlaps, and that colour is never alone."""

import io
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread

from kit.archive import save
from kit.step.lanes import NoEstimateError, lanes, to_png, to_svg


@pytest.fixture
def plan(plan_of):
    return plan_of(
        [("forward", 0, 1), ("backward", 1, 2), ("waiting", 2, 3), ("optimizer", 3, 4)],
        [(1.0, 2.5, 0.5), (2.5, 3.0, 0.5)],
    )


def boxes(figure):
    """(y, start, end) of every rectangle drawn on the lanes."""
    found = set()
    for collection in figure.axes[0].collections:
        for path in collection.get_paths():
            (x0, y0), (x1, _) = path.vertices.min(axis=0), path.vertices.max(axis=0)
            found.add((round(y0 - 0.12), round(float(x0), 6), round(float(x1), 6)))
    return found


def test_blocks_and_collectives_stand_where_the_estimate_puts_them(plan):
    assert boxes(lanes(plan)) == {
        (2, 0, 1), (2, 1, 2), (2, 2, 3), (2, 3, 4),  # compute, waiting as an empty box
        (1, 1, 2.5), (1, 2.5, 3),
        (0, 2, 2.5), (0, 2.5, 3),  # what is exposed, on a line of its own
    }  # fmt: skip


def test_it_says_in_words_what_it_shows(plan):
    figure = lanes(plan)
    axes = figure.axes[0]
    said = [text.get_text() for text in axes.texts]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["compute", "communication", "of it exposed"]
    assert {"F", "B", "O", "0", "1", "75%", "50%", "25%"} <= set(said)
    assert axes.get_xlabel() == "seconds, estimated"
    assert axes.get_title(loc="left").startswith("estimated on by hand: 4e+03 ms a step")


def test_no_look_is_told_by_colour_alone(plan):
    patches = lanes(plan).legends[0].get_patches()
    looks = {p.get_label(): (p.get_hatch(), p.get_linewidth(), p.get_facecolor()[3]) for p in patches}
    named = {label: look for label, look in looks.items() if ":" not in label}  # phases have a letter
    assert len(set(named.values())) == len(named) == 3
    assert {"F: forward", "B: backward", "O: optimizer"} <= set(looks)


@pytest.mark.parametrize("count", [1, 7, 300])
def test_words_stand_in_their_own_box_and_overlap_none(plan_of, count):
    width = 1.0 / count
    blocks = [("forward", 0.0, 0.5), ("backward", 0.5, 1.0)]
    figure = lanes(plan_of(blocks, [(n * width, (n + 1) * width, 0.0) for n in range(count)]))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    places = [text.get_window_extent(renderer) for text in figure.axes[0].texts]
    assert len(places) >= 5
    assert not any(a.overlaps(b) for n, a in enumerate(places) for b in places[n + 1 :])


def test_a_plan_without_times_says_how_to_get_some(plan):
    with pytest.raises(NoEstimateError, match=r"no times to draw; give it some: step\.plan_on\('h200'\)"):
        lanes(replace(plan, estimate=None))


def test_svg_is_well_formed_and_repeats_and_png_is_transparent(plan):
    svg = to_svg(plan)
    said = {(element.text or "").strip() for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}
    assert {"communication", "of it exposed"} <= said
    assert svg == to_svg(plan)
    pixels = imread(io.BytesIO(to_png(plan, dpi=50)))
    assert pixels[0, 0, 3] == 0.0
    assert np.any(pixels[..., 3] > 0.9)


def test_a_saved_plan_is_drawn_without_torch(plan, tmp_path):
    path = save(plan, tmp_path / "plan.zip")
    code = (
        f"import sys, kit; from kit.step.lanes import to_svg; print(len(to_svg(kit.load({str(path)!r}))) > 1000, "
        "'torch' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", "False", "False"]
