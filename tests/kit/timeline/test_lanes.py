import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit.timeline.activity import activity
from kit.timeline.intervals import union
from kit.timeline.lanes import MOST_RECTANGLES, coalesce, lanes, to_png, to_svg
from kit.timeline.read import read
from kit.timeline.record import Timeline

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


@pytest.fixture
def ddp(data: Path) -> Timeline:
    return read([data / f"h200_ddp_eager_rank{rank}.json.gz" for rank in (0, 1)])


def texts(figure: Any) -> list[str]:
    axes = figure.axes[0]
    return [
        *(label.get_text() for label in axes.get_yticklabels()),
        *(text.get_text() for text in axes.texts),
        *(text.get_text() for text in figure.legends[0].get_texts()),
        axes.get_xlabel(),
    ]


def test_every_rank_has_its_lanes_with_shares_steps_and_a_legend_in_words(ddp: Timeline) -> None:
    shown = texts(lanes(ddp))
    assert shown[:8] == [
        "rank 0  compute", "communication", "copy", "idle", "rank 1  compute", "communication", "copy", "idle",
    ]  # fmt: skip
    for text in ("59.9 %", "38.0 %", "67.0 %", "step 0", "step 1", "communication, exposed", "idle", "milliseconds"):
        assert text in shown


def test_a_cpu_only_rank_without_copies_has_no_copy_lane(data: Path) -> None:
    figure = lanes(read(data / "gloo_functional_rank0.json.gz"))
    assert [text for text in texts(figure) if "copy" in text] == []
    assert "step 1" in texts(figure)


def test_exposed_and_hidden_communication_differ_in_hatch_or_edge_and_not_in_colour_alone(ddp: Timeline) -> None:
    looks = {
        patch.get_label(): (patch.get_hatch(), patch.get_linewidth(), patch.get_facecolor()[3])
        for patch in lanes(ddp).legends[0].get_patches()
    }
    assert len(set(looks.values())) == len(looks) == 5


def test_no_lane_draws_more_rectangles_than_it_has_room_for() -> None:
    start = np.arange(0, 10**6, 10, dtype=np.int64)
    merged = coalesce(union(start, start + 5), 10**6 // MOST_RECTANGLES)
    assert len(merged[0]) <= MOST_RECTANGLES
    assert (merged[0][0], merged[1][-1]) == (0, 10**6 - 5)


def test_gaps_that_can_be_seen_stay() -> None:
    start = np.array([0, 100, 110], np.int64)
    merged = coalesce(union(start, start + 5), 20)
    assert (merged[0].tolist(), merged[1].tolist()) == ([0, 100], [5, 115])


def test_a_window_shows_its_milliseconds_only(ddp: Timeline) -> None:
    assert lanes(ddp, window=(20, 60)).axes[0].get_xlim() == (20.0, 60.0)
    with pytest.raises(ValueError, match=r"window \(5, 5\) has no length"):
        lanes(ddp, window=(5, 5))


def test_the_svg_is_well_formed_has_searchable_text_and_is_the_same_each_time(ddp: Timeline, data: Path) -> None:
    svg = to_svg(ddp)
    root = ET.fromstring(svg)
    said = {(element.text or "").strip() for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"communication", "milliseconds"} <= said
    assert svg == to_svg(ddp)
    assert str(data) not in svg


def test_the_png_has_a_transparent_ground(ddp: Timeline) -> None:
    import io

    from matplotlib.image import imread

    pixels = imread(io.BytesIO(to_png(ddp, dpi=50)))
    assert pixels[0, 0, 3] == 0.0
    assert (pixels[..., 3] > 0.9).any()


@pytest.mark.parametrize("rank", [0, None])
def test_an_empty_timeline_is_drawn_too(write: Write, rank: int | None) -> None:
    assert to_png(read(write([], rank=rank)))[:4] == b"\x89PNG"


def test_drawing_needs_neither_pyplot_nor_torch(data: Path) -> None:
    code = (
        "import sys; from kit.timeline.read import read; from kit.timeline.lanes import to_svg; "
        f"to_svg(read({str(data / 'gloo_ddp_rank0.json.gz')!r})); "
        "print('matplotlib.pyplot' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_recorded_memory_has_a_lane_with_its_peak(ddp: Timeline) -> None:
    begun = min(activity(ddp, rank).start_ns for rank in ddp.ranks)
    allocated = np.array([1, 3, 2, 9, 4], np.int64) * 2**20
    recorded = replace(
        ddp, memory_rank=np.array([0, 0, 0, 0, 1]), memory_device=np.array([0, 0, 0, -1, -1]),
        memory_lane=np.zeros(5, np.int64), memory_at_ns=begun + np.array([-3, 5, 10, 5, 7], np.int64) * 1_000_000,
        memory_changed_bytes=allocated, memory_allocated_bytes=allocated, memory_reserved_bytes=allocated,
    )  # fmt: skip
    shown = texts(lanes(recorded))
    assert shown[:5] == ["rank 0  compute", "communication", "copy", "idle", "memory"]
    assert [text for text in shown if text.endswith(" MiB")] == ["cpu: 9.0 MiB", "cpu: 4.0 MiB"]  # the larger peak
    alone = lanes(replace(recorded, memory_rank=np.array([0, 0, 0, 1, 1])))
    assert "device 0: 3.0 MiB" in texts(alone)
    curve = next(line for line in alone.axes[0].lines if len(line.get_xdata()) == 4)
    assert curve.get_xdata()[:3] == pytest.approx([0.0, 5.0, 10.0])  # what was there before stands at the beginning
    assert np.diff(curve.get_ydata()) == pytest.approx([0.8 * 2 / 3, -0.8 / 3, 0.0])


def test_without_memory_there_is_no_lane_for_it(ddp: Timeline) -> None:
    assert "memory" not in texts(lanes(ddp))
