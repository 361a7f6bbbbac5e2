"""Draw the edges of a collapsed graph as SVG paths: short ones straight, long ones as arcs beside the nodes.

Width grows with the logarithm of the bytes, as values of a training graph span six powers of ten.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from kit.graph.collapse_record import Collapsed
from kit.graph.layout import Layout
from kit.graph.record import Kind
from kit.graph.svg_nodes import NODE_HEIGHT, NODE_WIDTH, Point
from kit.graph.words import bytes_text, safe

_COMMUNICATION = (Kind.COLLECTIVE, Kind.WAIT)


def edge_width(bytes_carried: int) -> float:
    """Pixels: 1 up to a kilobyte, then 0.5 more for each power of ten, at most 4."""
    return min(4.0, 1.0 + 0.5 * max(0.0, math.log10(max(bytes_carried, 1)) - 3))


def draw_edges(shown: Collapsed, layout: Layout, at: Sequence[Point], *, prefix: str) -> str:
    """All edges but those between parts; the far ones first, so that near ones lie on top."""
    far: list[str] = []
    near: list[str] = []
    columns: dict[float, list[float]] = {}
    for point in sorted(at, key=lambda point: point.y):
        columns.setdefault(round(point.x, 1), []).append(point.y)
    for source, target, size in zip(
        shown.edge_from.tolist(), shown.edge_to.tolist(), shown.edge_bytes.tolist(), strict=True
    ):
        if shown.parts[source] != shown.parts[target]:
            continue
        crosses = layout.lane[source] != layout.lane[target]
        communicates = shown.kinds[source] in _COMMUNICATION or shown.kinds[target] in _COMMUNICATION
        if crosses or (communicates and abs(at[source].x - at[target].x) > 1):
            path = beside(at[source], at[target])
        else:
            path = _within(at[source], at[target], free=_is_free(at[source], at[target], columns))
        style = "edge comm" if communicates else "edge far" if crosses else "edge"
        width = "" if communicates else f' stroke-width="{edge_width(size):.1f}"'
        title = safe(f"{shown.labels[source]} → {shown.labels[target]}: {bytes_text(size)}")
        tip = f"{prefix}tipcomm" if communicates else f"{prefix}tip"
        drawn = f'<path class="{style}" d="{path}"{width} marker-end="url(#{tip})"><title>{title}</title></path>'
        (far if crosses else near).append(drawn)
    return "".join([*far, *near])


def beside(start: Point, end: Point) -> str:
    """From the side of one node to the facing side of another."""
    half = NODE_WIDTH / 2 if end.x >= start.x else -NODE_WIDTH / 2
    return curve(Point(start.x + half, start.y), Point(end.x - half, end.y))


def curve(start: Point, end: Point) -> str:
    """An S that leaves and arrives level."""
    bend = (start.x + end.x) / 2
    return f"M{start.x:.1f} {start.y:.1f}C{bend:.1f} {start.y:.1f} {bend:.1f} {end.y:.1f} {end.x:.1f} {end.y:.1f}"


def _is_free(start: Point, end: Point, columns: Mapping[float, Sequence[float]]) -> bool:
    """Whether no node stands between the rows of two nodes in either of their columns."""
    low, high = min(start.y, end.y) + 1, max(start.y, end.y) - 1
    return all(
        bisect_left(columns[round(x, 1)], low) == bisect_left(columns[round(x, 1)], high) for x in (start.x, end.x)
    )


def _within(start: Point, end: Point, *, free: bool) -> str:
    """Along one lane: upright when nothing is between, level to another column, else an arc at the side."""
    down = 1.0 if end.y >= start.y else -1.0
    across, along = abs(end.x - start.x), abs(end.y - start.y)
    top, bottom = start.y + down * NODE_HEIGHT / 2, end.y - down * NODE_HEIGHT / 2
    if free and along > NODE_HEIGHT:
        bend = (bottom - top) / 2
        return (
            f"M{start.x:.1f} {top:.1f}C{start.x:.1f} {top + bend:.1f} {end.x:.1f} {bottom - bend:.1f} "
            f"{end.x:.1f} {bottom:.1f}"
        )
    if across > 1:
        return beside(start, end)
    rim = start.x + NODE_WIDTH / 2
    bulge = rim + min(34.0, 10.0 + along / 14)
    return (
        f"M{rim:.1f} {start.y + down * 6:.1f}C{bulge:.1f} {start.y + down * 14:.1f} "
        f"{bulge:.1f} {end.y - down * 14:.1f} {rim:.1f} {end.y - down * 6:.1f}"
    )
