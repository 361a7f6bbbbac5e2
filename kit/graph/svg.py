"""The static picture of a graph: one SVG, collapsed, self-contained, light and dark, without scripts.

Forward runs down and backward up beside it, so that what forward saves for backward is a short edge;
communication stands in a column of its own between them. A cut graph shows its parts side by side,
with all values from one part to another as one bundle. Everything is drawn from `Collapsed` and
`Layout`; nothing is measured here.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from kit import colours
from kit.graph.collapse import collapse
from kit.graph.collapse_record import Collapsed
from kit.graph.layout import Layout, place
from kit.graph.record import Graph, Kind, Phase
from kit.graph.svg_cut import bundles, draw_bundles
from kit.graph.svg_edges import draw_edges
from kit.graph.svg_nodes import NODE_HEIGHT, PHASE_COLOUR, PHASE_LETTER, Point, draw_node
from kit.graph.svg_style import STYLE, definitions
from kit.graph.words import fitted, flops_text, safe, text_width

_STEP_X, _STEP_Y = 190.0, 52.0
_MARGIN, _HEAD, _LANE_HEAD = 18.0, 44.0, 30.0
_FOOT = 34.0


def to_svg(
    graph: Graph,
    *,
    parts: Sequence[int] | None = None,
    part_bytes: Mapping[tuple[int, int], int] | None = None,
    part_titles: Sequence[str] | None = None,
    max_groups: int = 80,
    title: str | None = None,
) -> str:
    """The picture of `graph` as one `<svg>` element with tooltips.

    `parts`: the part of each node of a cut graph (-1: in each part, not drawn). `part_bytes`: bytes from
    part to part, where the caller knows better than counting each crossing value once a part.
    `part_titles`: a line for each part, beside its number. Raises `ValueError` as `collapse` does.
    """
    shown = collapse(graph, parts=parts, max_groups=max_groups)
    layout = _layout(shown, cut=parts is not None)
    picture = _Picture(shown, layout, cut=parts is not None, title=title or graph.name)
    return picture.draw(part_bytes or {}, part_titles or ())


def _layout(shown: Collapsed, *, cut: bool) -> Layout:
    order = {phase: number for number, phase in enumerate(Phase)}
    keys = shown.parts.astype(np.int64) if cut else np.array([order[p] for p in shown.phases], np.int64).reshape(-1)
    present, lane = np.unique(keys, return_inverse=True)
    return place(
        lane=lane.astype(np.int32).reshape(-1),
        lane_up=np.zeros(len(present), bool) if cut else present == order[Phase.BACKWARD],
        edge_from=shown.edge_from,
        edge_to=shown.edge_to,
        aside=np.array([kind in (Kind.COLLECTIVE, Kind.WAIT) for kind in shown.kinds], bool),
        wide=3 if len(present) == 1 else 2,
    )


class _Picture:
    """Coordinates of one picture, and its pieces."""

    def __init__(self, shown: Collapsed, layout: Layout, *, cut: bool, title: str) -> None:
        self.shown, self.layout, self.cut, self.title = shown, layout, cut, title
        gap = 60.0 if cut else 0.0  # room for the bundles between parts
        self.shift = gap * np.arange(len(layout.lane_left))
        top = _MARGIN + _HEAD + _LANE_HEAD + NODE_HEIGHT / 2 + 8
        self.at = [
            Point(_MARGIN + x * _STEP_X + float(self.shift[lane]), top + y * _STEP_Y)
            for x, y, lane in zip(layout.x.tolist(), layout.y.tolist(), layout.lane.tolist(), strict=True)
        ]
        self.prefix = "kg" + hashlib.sha256(repr((shown.labels, shown.graph.name)).encode()).hexdigest()[:8]
        right = float(layout.lane_right[-1]) * _STEP_X + float(self.shift[-1]) if len(layout) else 0.0
        title_width = min(text_width(title, 14, weight=700), 900.0)
        self.width = max(right, title_width, 380.0) + 2 * _MARGIN
        bottom = max((p.y for p in self.at), default=top) + NODE_HEIGHT / 2 + 14
        self.bottom = bottom
        self.height = bottom + _FOOT

    def draw(self, part_bytes: Mapping[tuple[int, int], int], titles: Sequence[str]) -> str:
        lines, labels = self._bundles(part_bytes)
        pieces = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="kg" role="img" viewBox="0 0 {self.width:.0f} '
            f'{self.height:.0f}" width="{self.width:.0f}" height="{self.height:.0f}" '
            'style="max-width:100%;height:auto">',
            f"<style>{STYLE}</style>",
            definitions(self.prefix),
            f'<rect class="paper" width="{self.width:.0f}" height="{self.height:.0f}" rx="6"/>',
            self._title(),
            "".join(self._lane(number, titles) for number in range(len(self.layout.lane_left))),
            draw_edges(self.shown, self.layout, self.at, prefix=self.prefix),
            lines,
            "".join(
                draw_node(self.shown, number, self.at[number], prefix=self.prefix) for number in range(len(self.shown))
            ),
            labels,
            self._legend(),
            "</svg>",
        ]
        return "".join(pieces)

    def _title(self) -> str:
        graph = self.shown.graph
        drawn_of = f"{len(self.shown)} of {len(graph)} nodes drawn"
        facts = [drawn_of, f"{graph.collective_count} collectives", flops_text(float(graph.flops.sum()))]
        room = self.width - 2 * _MARGIN
        words = fitted(self.title, room, 14, weight=700)
        detail = fitted(" · ".join(facts), room, 11)
        return (
            f'<text x="{_MARGIN}" y="{_MARGIN + 12}" font-size="14" font-weight="700">{safe(words)}</text>'
            f'<text class="soft" x="{_MARGIN}" y="{_MARGIN + 29}" font-size="11">{safe(detail)}</text>'
        )

    def _edges_of_lane(self, number: int) -> tuple[float, float]:
        left = _MARGIN + float(self.layout.lane_left[number]) * _STEP_X + float(self.shift[number])
        return left, left + float(self.layout.lane_right[number] - self.layout.lane_left[number]) * _STEP_X

    def _lane(self, number: int, titles: Sequence[str]) -> str:
        """A heading, and for a part its band."""
        left, right = self._edges_of_lane(number)
        mine = np.flatnonzero(self.layout.lane == number)
        first = int(mine[0])
        operators = int((self.shown.node_counts[mine] * self.shown.repeats[mine]).sum())
        y = _MARGIN + _HEAD + 16
        if not self.cut:
            phase = self.shown.phases[first]
            colour, mark = PHASE_COLOUR[phase], PHASE_LETTER[phase]
            words = f"{phase} {'↑' if self.layout.lane_up[number] else '↓'} {operators} ops"
            band = ""
        else:
            part = int(self.shown.parts[first])
            colour, mark = colours.of_number(part), str(part)
            words = titles[part] if part < len(titles) else f"part {part} · {operators} ops"
            band = (
                f'<rect x="{left:.1f}" y="{_MARGIN + _HEAD - 4:.1f}" width="{right - left:.1f}" '
                f'height="{self.bottom - _MARGIN - _HEAD + 4:.1f}" rx="8" fill="{colour}" fill-opacity=".1" '
                f'stroke="{colour}" stroke-width="1.5"/>'
            )
        label = safe(fitted(words, right - left - 34, 12, weight=600))
        return band + (
            f'<circle class="mark" cx="{left + 17:.1f}" cy="{y - 4:.1f}" r="9" fill="{colour}"/>'
            f'<text x="{left + 17:.1f}" y="{y:.1f}" font-size="11" font-weight="700" text-anchor="middle" '
            f'style="fill:{colours.ink_on(colour)}">{mark}</text>'
            f'<text x="{left + 32:.1f}" y="{y:.1f}" font-size="12" font-weight="600">{label}</text>'
        )

    def _bundles(self, part_bytes: Mapping[tuple[int, int], int]) -> tuple[str, str]:
        """Lines and labels of what passes between parts; nothing for a graph that is not cut."""
        if not self.cut:
            return "", ""
        lanes = zip(self.shown.parts.tolist(), self.layout.lane.tolist(), strict=True)
        sides = {part: self._edges_of_lane(lane) for part, lane in dict(lanes).items()}
        return draw_bundles(bundles(self.shown, part_bytes), self.at, sides)

    def _legend(self) -> str:
        """What the marks mean; only marks that are in the picture."""
        y = self.height - _FOOT / 2 + 4
        x = _MARGIN
        drawn = []
        entries: list[tuple[str, str]] = []
        if self.shown.collectives.any():
            hatch = f'fill="url(#{self.prefix}hatch)" opacity=".4"'
            box = '<rect class="comm" x="{x}" y="{y}" width="22" height="12" rx="3"/>'
            entries.append((box + f'<rect x="{{x}}" y="{{y}}" width="22" height="12" rx="3" {hatch}/>', "collective"))
        if Kind.WAIT in self.shown.kinds:
            entries.append(('<rect class="wait" x="{x}" y="{y}" width="22" height="12" rx="3"/>', "wait for it"))
        if (self.shown.repeats > 1).any():
            entries.append(("", "×n: identical blocks drawn once"))
        entries.append(("", "wider edge: more bytes"))
        for mark, words in entries:
            if mark:
                drawn.append(mark.replace("{x}", f"{x:.1f}").replace("{y}", f"{y - 10:.1f}"))
                x += 27
            drawn.append(f'<text class="soft" x="{x:.1f}" y="{y:.1f}" font-size="10.5">{safe(words)}</text>')
            x += text_width(words, 10.5) + 18
        return "".join(drawn)
