"""The picture as a document: well-formed, self-contained, escaped, nothing outside, all cues there."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import pytest

from kit import colours
from kit.graph.record import Graph, Kind, Phase
from kit.graph.svg import to_svg
from kit.graph.words import text_width

F, B, O = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER  # noqa: E741 - the letters of the picture
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def step(make_graph: Callable[..., Graph]) -> Graph:
    """Forward, backward, an all-reduce with its wait, an update."""
    return make_graph(
        [(0, 1), (1, 2), (0, 3), (2, 3), (3, 4), (4, 5), (5, 6)],
        phases=[F, F, B, B, B, B, O],
        kinds=[Kind.COMPUTE] * 4 + [Kind.COLLECTIVE, Kind.WAIT, Kind.COMPUTE],
        targets=["aten.mm.default"] * 4 + ["_c10d_functional.all_reduce.default", "w.wait.default", "aten.add_.Tensor"],
        modules=["head"] * 6 + [""],
        sources=["/home/me/net.py:7: y = x @ w if a < b else '&'"] * 7,
        groups=["", "", "", "", "world", "", ""],
        bytes_out=[4, 4000, 4, 4_000_000, 4, 4, 4],
    )


def _texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


def _titles(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}title")]


def test_the_picture_needs_nothing_from_outside_and_runs_nothing(step: Graph) -> None:
    svg = to_svg(step)
    assert "<script" not in svg
    assert set(re.findall(r"https?://[^\"'\s]+", svg)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\son\w+=", svg)
    assert "@import" not in svg


def test_it_follows_the_theme_of_the_lab_and_else_the_readers_preference(step: Graph) -> None:
    svg = to_svg(step)
    assert "var(--jp-ui-font-color1,#222)" in svg
    assert "@media (prefers-color-scheme:dark)" in svg


def test_every_phase_has_its_letter_beside_its_colour(step: Graph) -> None:
    svg = to_svg(step)
    assert {"F", "B", "O"} <= set(_texts(svg))
    assert all(colour in svg for colour in (colours.FORWARD, colours.BACKWARD, colours.OPTIMIZER))


def test_a_collective_is_hatched_and_thick_edged_and_a_wait_is_dashed(step: Graph) -> None:
    root = ET.fromstring(to_svg(step))
    nodes = {g.find(f"{SVG}title").text.split("\n")[0]: g for g in root.iter(f"{SVG}g") if g.get("class") == "node"}  # type: ignore[union-attr]
    rects = nodes["all_reduce"].findall(f"{SVG}rect")
    assert rects[0].get("class") == "comm"
    assert "hatch" in (rects[1].get("fill") or "")
    assert [rect.get("class") for rect in nodes["wait"].findall(f"{SVG}rect")] == ["wait"]
    assert [rect.get("class") for rect in nodes["mm"].findall(f"{SVG}rect")] == ["box"]


def test_a_tooltip_says_operator_shape_bytes_module_and_the_users_line(step: Graph) -> None:
    tooltip = next(title for title in _titles(to_svg(step)) if title.startswith("all_reduce\n"))
    assert tooltip.split("\n") == [
        "all_reduce",
        "head · backward",
        "all_reduce float32[1] n4",
        "value 4 B, moves 8 B",
        "starts 1 collective, group world",
        "net.py:7: y = x @ w if a < b else '&'",
    ]


def test_names_and_sources_are_escaped(make_graph: Callable[..., Graph]) -> None:
    evil = '</title><script>alert("1")</script>&'
    graph = make_graph([(0, 1)], modules=[evil, evil], sources=[f"a.py:1: {evil}"] * 2)
    svg = to_svg(graph, title=evil)
    ET.fromstring(svg)
    assert "<script" not in svg


def _require_inside(svg: str) -> None:
    root = ET.fromstring(svg)
    _, _, width, height = map(float, root.get("viewBox", "").split())
    for element in root.iter():
        if element.tag == f"{SVG}rect" and element.get("x"):
            left, top = float(element.get("x", 0)), float(element.get("y", 0))
            assert 0 <= left <= left + float(element.get("width", 0)) <= width
            assert 0 <= top <= top + float(element.get("height", 0)) <= height
        if element.tag == f"{SVG}text":
            room = text_width(element.text or "", float(element.get("font-size", 0)))
            x, anchor = float(element.get("x", 0)), element.get("text-anchor", "start")
            left = x - {"start": 0.0, "middle": room / 2, "end": room}[anchor]
            assert left >= 0 and left + room <= width + 1
        if element.tag == f"{SVG}path" and "edge" in (element.get("class") or ""):
            numbers = [float(n) for n in re.findall(r"-?\d+\.\d+", element.get("d", ""))]
            assert all(0 <= x <= width for x in numbers[::2])
            assert all(0 <= y <= height for y in numbers[1::2])


@pytest.mark.parametrize("title", [None, "a title that is far longer than the picture is wide " * 4])
def test_nothing_lies_outside_the_picture(make_graph: Callable[..., Graph], step: Graph, title: str | None) -> None:
    long = make_graph(
        [(row, row + 1) for row in range(60)] + [(0, 60), (3, 50)],
        modules=[f"a_module_with_a_rather_long_name.{row}.and_a_child" for row in range(61)],
    )
    for svg in (to_svg(step, title=title), to_svg(long, title=title), to_svg(long, parts=[r // 16 for r in range(61)])):
        _require_inside(svg)


def test_parts_are_numbered_and_what_crosses_is_one_bundle_with_its_bytes(make_graph: Callable[..., Graph]) -> None:
    graph = make_graph([(0, 1), (0, 2), (0, 3), (1, 3), (2, 3)], bytes_out=[1000, 2000, 3000, 1])
    svg = to_svg(graph, parts=[0, 0, 1, 1])
    assert "3 kB" in _texts(svg)  # values 0 and 1, each counted once
    assert "part 0 to part 1: 2 values, 3 kB" in _titles(svg)
    assert {"0", "1"} <= set(_texts(svg))
    assert all(colour in svg for colour in (colours.of_number(0), colours.of_number(1)))


def test_the_caller_may_say_the_bytes_and_titles_of_parts(make_graph: Callable[..., Graph]) -> None:
    svg = to_svg(make_graph([(0, 1)]), parts=[0, 1], part_bytes={(0, 1): 5_000_000}, part_titles=["first", "second"])
    assert {"5 MB", "first", "second"} <= set(_texts(svg))


def test_labels_of_bundles_do_not_lie_on_each_other(make_graph: Callable[..., Graph]) -> None:
    svg = to_svg(make_graph([(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)]), parts=[0, 1, 2, 3])
    boxes = [
        (float(r.get("x", 0)), float(r.get("y", 0)), float(r.get("width", 0)))
        for r in ET.fromstring(svg).iter(f"{SVG}rect")
        if r.get("rx") == "10"
    ]
    assert len(boxes) == 5
    for at, (x, y, width) in enumerate(boxes):
        for other_x, other_y, other_width in boxes[at + 1 :]:
            assert abs(y - other_y) >= 20 or x + width <= other_x or other_x + other_width <= x


def test_two_pictures_on_one_page_share_no_ids(step: Graph, make_graph: Callable[..., Graph]) -> None:
    ids = [set(re.findall(r' id="([^"]+)"', svg)) for svg in (to_svg(step), to_svg(make_graph([(0, 1)])))]
    assert ids[0] and ids[1] and not ids[0] & ids[1]


def test_the_same_graph_gives_the_same_picture(step: Graph) -> None:
    assert to_svg(step) == to_svg(step)


@pytest.mark.parametrize("options", [{}, {"parts": []}], ids=["whole", "cut"])
def test_a_graph_without_nodes_is_an_empty_picture(make_graph: Callable[..., Graph], options: dict[str, Any]) -> None:
    assert "0 of 0 nodes drawn" in _texts(to_svg(make_graph([], n=0), **options))[1]
