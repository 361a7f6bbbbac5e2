"""The picture and the table of a TuneReport, read back from their own markup."""

import re
import xml.etree.ElementTree as ET

import pytest

from kit.tuning.record import Measurement, Setting, TuneReport
from widgets.tuner_picture import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, draw, format_table

SVG = "{http://www.w3.org/2000/svg}"


def report(*rows: tuple[int, float, float], method: str = "predicted") -> TuneReport:
    """Rows of micro-batch, samples a second, peak MiB; no rate is a failure."""
    return TuneReport(
        global_batch=64,
        world_size=2,
        measurements=tuple(
            Measurement(
                setting=Setting(micro_batch=m, accumulation=32 // m),
                seconds_per_step=64 / rate if rate else 0.0,
                samples_per_second=rate,
                peak_bytes=int(mib * 2**20),
                peak_method=method,
                failure="" if rate else "out of memory & more",
            )
            for m, rate, mib in rows
        ),
    )


def find_points(svg: str) -> dict[str, tuple[float, float]]:
    """Label -> place of each point."""
    root = ET.fromstring(svg)
    points = {}
    for group in root.iter(f"{SVG}g"):
        dots = [c for c in group.findall(f"{SVG}circle") if c.get("r") == "5"]
        if dots:
            label = group.find(f"{SVG}text")
            assert label is not None
            points[str(label.text)] = (float(dots[0].get("cx", "")), float(dots[0].get("cy", "")))
    return points


def test_more_memory_is_further_right_and_more_samples_further_up() -> None:
    svg = draw(report((1, 100, 300), (2, 180, 320), (4, 150, 400)), selected=Setting(micro_batch=1, accumulation=32))
    points = find_points(svg)
    assert list(points) == ["1", "2 ★", "4"]
    assert points["1"][0] < points["2 ★"][0] < points["4"][0]
    assert points["2 ★"][1] < points["4"][1] < points["1"][1]


def test_throughput_starts_at_zero_so_heights_compare_as_rates() -> None:
    svg = draw(report((1, 100, 300), (2, 200, 320)), selected=Setting(micro_batch=1, accumulation=32))
    points = find_points(svg)
    floor = HEIGHT - BOTTOM
    assert (floor - points["2 ★"][1]) / (floor - points["1"][1]) == pytest.approx(2.0, abs=0.01)


@pytest.mark.parametrize("rows", [[(4, 10.0, 300.0)], [(1, 1e-4, 0.5), (2, 2e-4, 0.5)], [(1, 5e6, 81920.0)]])
def test_everything_stays_on_the_picture(rows: list[tuple[int, float, float]]) -> None:
    svg = draw(report(*rows), selected=Setting(micro_batch=1, accumulation=32))
    for x, y in find_points(svg).values():
        assert LEFT <= x <= WIDTH - RIGHT
        assert TOP <= y <= HEIGHT - BOTTOM
    numbers = re.findall(r'<text x="([-\d.]+)" y="([-\d.]+)"', svg)
    assert len(numbers) > 4
    assert all(0 <= float(x) <= WIDTH and 0 <= float(y) <= HEIGHT for x, y in numbers)


def test_only_the_selected_point_has_a_ring() -> None:
    svg = draw(report((1, 100, 300), (2, 180, 320)), selected=Setting(micro_batch=2, accumulation=16))
    rings = [c for c in ET.fromstring(svg).iter(f"{SVG}circle") if c.get("r") == "10"]
    assert [(float(r.get("cx", "")), float(r.get("cy", ""))) for r in rings] == [find_points(svg)["2 ★"]]


def test_the_axis_says_how_memory_was_found() -> None:
    svg = draw(report((1, 100, 300)), selected=Setting(micro_batch=1, accumulation=32))
    assert "peak memory of the fullest rank, MiB</text>" in svg
    assert ">(predicted)</text>" in svg


def test_a_long_method_is_broken_into_lines_that_fit() -> None:
    method = "liveness of the step's graph, predicted for the allocator's view of one step without fragmentation"
    svg = draw(report((1, 100, 300), method=method), selected=Setting(micro_batch=1, accumulation=32))
    lines = [str(text.text) for text in ET.fromstring(svg).iter(f"{SVG}text")]
    assert any(line.startswith("(liveness") for line in lines)
    assert any(line.endswith("fragmentation)") for line in lines)
    assert max(map(len, lines)) <= 64


def test_the_label_of_the_highest_point_touches_no_other_text() -> None:
    svg = draw(report((1, 100, 300), (2, 101, 320)), selected=Setting(micro_batch=1, accumulation=32))
    texts = [(str(t.text), float(t.get("y", ""))) for t in ET.fromstring(svg).iter(f"{SVG}text")]
    (star,) = [y for words, y in texts if words == "2 ★"]
    assert star >= 12
    assert all(abs(y - star) >= 12 for words, y in texts if words.startswith(("number", "(", "peak")))


def test_without_measurements_the_picture_says_so() -> None:
    assert "Nothing measured yet" in draw(report((1, 0, 0)), selected=Setting(micro_batch=1, accumulation=32))


def test_the_table_has_a_row_for_every_setting_with_its_numbers_or_why_not() -> None:
    settings = [Setting(micro_batch=m, accumulation=32 // m) for m in (1, 2, 4)]
    table = format_table(report((1, 128, 300), (2, 0, 0)), settings=settings, selected=settings[2])
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr style.*?</tr>", table)]
    assert rows == [
        ["", "1", "32", "0", "0.5", "128", "300.0", "★ best"],
        ["", "2", "16", "0", "", "", "", "out of memory &amp; more"],
        ["▶", "4", "8", "0", "", "", "", "not measured"],
    ]
