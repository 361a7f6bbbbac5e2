"""Draw what passes between the parts of a cut graph: one bundle for each pair of parts, with its bytes.

Single edges would merge into a bar that says nothing; what counts is how much each part must send to
each other part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kit import colours
from kit.graph.collapse_record import Collapsed
from kit.graph.svg_edges import curve, edge_width
from kit.graph.svg_nodes import NODE_WIDTH, Point
from kit.graph.words import bytes_text, safe, text_width


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """All values that pass from one part to another; `tails` and `heads` are visible nodes."""

    from_part: int
    to_part: int
    bytes_carried: int
    values: int
    tails: tuple[int, ...]
    heads: tuple[int, ...]


def bundles(shown: Collapsed, part_bytes: Mapping[tuple[int, int], int]) -> tuple[Bundle, ...]:
    """The bundles of a cut graph; bytes are those of `part_bytes`, else of each crossing value once a part."""
    graph = shown.graph
    values: dict[tuple[int, int], set[int]] = {}
    ends: dict[tuple[int, int], tuple[set[int], set[int]]] = {}
    for a, b in zip(graph.edge_from.tolist(), graph.edge_to.tolist(), strict=True):
        source, target = int(shown.group[a]), int(shown.group[b])
        if source < 0 or target < 0 or shown.parts[source] == shown.parts[target]:
            continue
        pair = int(shown.parts[source]), int(shown.parts[target])
        values.setdefault(pair, set()).add(a)
        tails, heads = ends.setdefault(pair, (set(), set()))
        tails.add(source)
        heads.add(target)
    return tuple(
        Bundle(
            from_part=pair[0],
            to_part=pair[1],
            bytes_carried=part_bytes.get(pair, int(sum(graph.bytes_out[row] for row in values[pair]))),
            values=len(values[pair]),
            tails=tuple(sorted(ends[pair][0])),
            heads=tuple(sorted(ends[pair][1])),
        )
        for pair in sorted(ends)
    )


def draw_bundles(
    found: Sequence[Bundle], at: Sequence[Point], sides: Mapping[int, tuple[float, float]]
) -> tuple[str, str]:
    """(lines, labels): the lines go under the nodes, the labels over them.

    `sides`: left and right edge of the band of each part, in pixels.
    """
    lines: list[str] = []
    labels: list[str] = []
    taken: list[Point] = []
    for bundle in found:
        colour = colours.of_number(bundle.from_part)
        start = Point(sides[bundle.from_part][1], _mean([at[i].y for i in bundle.tails]))
        end = Point(sides[bundle.to_part][0], _mean([at[i].y for i in bundle.heads]))
        thin = [curve(Point(at[i].x + NODE_WIDTH / 2, at[i].y), start) for i in bundle.tails]
        thin += [curve(end, Point(at[i].x - NODE_WIDTH / 2, at[i].y)) for i in bundle.heads]
        lines += [f'<path class="edge" d="{path}" style="stroke:{colour};stroke-width:1.4"/>' for path in thin]
        title = safe(
            f"part {bundle.from_part} to part {bundle.to_part}: {bundle.values} "
            f"value{'s' if bundle.values != 1 else ''}, {bytes_text(bundle.bytes_carried)}"
        )
        width = 2 + 1.5 * edge_width(bundle.bytes_carried)
        lines.append(
            f'<path class="edge" d="{curve(start, end)}" stroke-linecap="round" '
            f'style="stroke:{colour};stroke-width:{width:.1f}"><title>{title}</title></path>'
        )
        near = (start.x + sides[bundle.from_part + 1][0]) / 2 if bundle.from_part + 1 in sides else start.x + 30
        place = _free_place(_on_curve(start, end, x=near), taken)
        taken.append(place)
        labels.append(_label(bundle, place, colour, title))
    return "".join(lines), "".join(labels)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _on_curve(start: Point, end: Point, *, x: float) -> Point:
    """The point of `curve(start, end)` at x: a cubic with level ends, solved by halving."""
    low, high = 0.0, 1.0
    for _ in range(30):
        t = (low + high) / 2
        across = start.x + (end.x - start.x) * (1.5 * t - 1.5 * t * t + t**3)
        low, high = (t, high) if (across < x) == (end.x > start.x) else (low, t)
    return Point(x, start.y + (end.y - start.y) * (3 * t * t - 2 * t**3))


def _free_place(wanted: Point, taken: Sequence[Point]) -> Point:
    """The nearest place below in the same gap where no other label stands."""
    y = wanted.y
    while any(abs(other.x - wanted.x) < 60 and abs(other.y - y) < 22 for other in taken):
        y += 11
    return Point(wanted.x, y)


def _label(bundle: Bundle, place: Point, colour: str, title: str) -> str:
    words = bytes_text(bundle.bytes_carried)
    if bundle.to_part != bundle.from_part + 1:
        words += f" → {bundle.to_part}"
    room = text_width(words, 11, weight=600) + 12
    return (
        f'<g><title>{title}</title><rect class="box" x="{place.x - room / 2:.1f}" y="{place.y - 10:.1f}" '
        f'width="{room:.1f}" height="20" rx="10" style="stroke:{colour};stroke-width:1.6"/>'
        f'<text x="{place.x:.1f}" y="{place.y + 4:.1f}" font-size="11" font-weight="600" '
        f'text-anchor="middle">{safe(words)}</text></g>'
    )
