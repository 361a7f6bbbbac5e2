"""Draw a timeline as lanes: for each rank what computed, communicated, copied and idled, and when; its memory too.

A static matplotlib picture that needs no pyplot (so a notebook draws it once), has a transparent ground and mid-grey
text (so it reads on light and on dark), and never tells anything by colour alone: every kind has its own lane,
exposed communication a hatch and a thick edge, copies dots, idle an empty outline.
"""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from kit import colours
from kit.timeline.activity import Activity, activity, within
from kit.timeline.intervals import Spans, length
from kit.timeline.memory_lane import draw_memory, has_memory
from kit.timeline.record import UNKNOWN_RANK, Timeline
from kit.timeline.steps import Mark, steps

TEXT = "#808080"  # reads on white and on black
_EDGE = "#1a1a1a"
MOST_RECTANGLES = 2000  # a lane has fewer pixels than that
_HATCHED_FROM = 1 / 250  # of the width: narrower ones would be all edge
_LANE_INCHES = 0.24
_STEP_LABELS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class _Style:
    label: str
    colour: str
    hatch: str
    edge_points: float
    filled: bool = True


_COMPUTE = _Style(label="compute", colour=colours.COMPUTE, hatch="", edge_points=0.0)
_EXPOSED = _Style(label="communication, exposed", colour=colours.EXPOSED, hatch=2 * colours.HATCH, edge_points=1.2)
_HIDDEN = _Style(label="communication, hidden", colour=colours.HIDDEN, hatch=2 * colours.HATCH, edge_points=0.4)
_COPY = _Style(label="copy", colour=colours.COPY, hatch=2 * colours.DOTS, edge_points=0.4)
_IDLE = _Style(label="idle", colour=colours.IDLE, hatch="", edge_points=0.6, filled=False)


def lanes(timeline: Timeline, *, window: tuple[float, float] | None = None) -> Any:
    """A matplotlib `Figure` of all ranks on one clock.

    Zero is the first thing that any rank did; `window` shows only (from, to) in milliseconds after it. Intervals
    nearer to each other than 1/2000 of the width are drawn as one. Raises `ValueError` for a window without length.
    """
    from matplotlib.figure import Figure

    seen = [activity(timeline, rank) for rank in timeline.ranks]
    zero_ns, shown = _shown(seen, window)
    # Each rank keeps its own window, so that the shares beside the lanes are those of the table.
    drawn = [within(a, max(a.start_ns, shown[0]), max(a.start_ns, shown[0], min(a.end_ns, shown[1]))) for a in seen]
    with_copy = any(length(a.copy) for a in drawn)
    with_memory = has_memory(timeline)
    count = len(drawn) * (3 + with_copy + with_memory)
    height = 1.1 + _LANE_INCHES * (count + 0.7 * len(drawn))
    figure = Figure(figsize=(9.5, height), layout="constrained")
    figure.patch.set_alpha(0.0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0.0)
    ticks: list[tuple[float, str]] = []
    top = 0.0
    for whole, part in zip(seen, drawn, strict=True):
        bottom = _draw_rank(axes, part, top, ticks, zero_ns=zero_ns, shown_ns=shown[1] - shown[0], with_copy=with_copy)
        if with_memory:
            bottom -= 1
            ticks.append((bottom + 0.5, "memory"))
            draw_memory(axes, timeline, part.rank, bottom, zero_ns=zero_ns, shown=shown, ink=TEXT)
        _draw_steps(axes, timeline, whole, (top, bottom), zero_ns=zero_ns, shown=shown)
        top = bottom - 0.7
    _finish(figure, axes, ticks, top=top, limits=tuple((edge - zero_ns) / 1e6 for edge in shown), with_copy=with_copy)
    return figure


def to_svg(timeline: Timeline, *, window: tuple[float, float] | None = None) -> str:
    """The picture as SVG text, for a web page or a notebook's output."""
    import matplotlib as mpl

    buffer = io.StringIO()
    # Text stays text: it can be searched, read aloud, and the file is smaller.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "kit"}):
        lanes(timeline, window=window).savefig(
            buffer, format="svg", transparent=True, metadata={"Date": None, "Title": repr(timeline)}
        )
    return buffer.getvalue()


def to_png(timeline: Timeline, *, window: tuple[float, float] | None = None, dpi: int = 144) -> bytes:
    """The picture as PNG bytes with a transparent ground."""
    buffer = io.BytesIO()
    lanes(timeline, window=window).savefig(buffer, format="png", transparent=True, dpi=dpi)
    return buffer.getvalue()


def coalesce(spans: Spans, least_gap_ns: int) -> Spans:
    """The same union with gaps shorter than `least_gap_ns` closed, so that few rectangles remain."""
    start, end = spans
    if not len(start):
        return spans
    apart = start[1:] - end[:-1] >= max(1, least_gap_ns)
    return start[np.append(True, apart)], end[np.append(apart, True)]


def _shown(seen: list[Activity], window: tuple[float, float] | None) -> tuple[int, tuple[int, int]]:
    """The picture's zero and the nanoseconds it shows."""
    ran = [a for a in seen if a.end_ns > a.start_ns]
    zero_ns = min((a.start_ns for a in ran), default=0)
    if window is None:
        return zero_ns, (zero_ns, max((a.end_ns for a in ran), default=zero_ns + 1))
    first, last = window
    if not first < last:
        raise ValueError(f"window {window} has no length; expected (from, to) in milliseconds with from < to")
    return zero_ns, (zero_ns + round(first * 1e6), zero_ns + round(last * 1e6))


def _draw_rank(
    axes: Any,
    part: Activity,
    top: float,
    ticks: list[tuple[float, str]],
    *,
    zero_ns: int,
    shown_ns: int,
    with_copy: bool,
) -> float:
    """Draw the lanes of one rank downward from `top` and return the bottom."""
    name = "rank ?" if part.rank == UNKNOWN_RANK else f"rank {part.rank}"
    rows: list[tuple[str, list[tuple[_Style, Spans]], int]] = [
        (f"{name}  compute", [(_COMPUTE, part.compute)], length(part.compute)),
        (
            "communication",
            [(_HIDDEN, part.hidden_communication), (_EXPOSED, part.exposed_communication)],
            length(part.communication),
        ),
    ]
    if with_copy:
        rows.append(("copy", [(_COPY, part.copy)], length(part.copy)))
    rows.append(("idle", [(_IDLE, part.idle)], length(part.idle)))
    width = max(1, part.end_ns - part.start_ns)
    for row, (label, spans, covered) in enumerate(rows):
        y = top - row - 1
        ticks.append((y + 0.5, label))
        for style, union in spans:
            _draw_spans(axes, union, style, y, zero_ns=zero_ns, width=shown_ns)
        axes.annotate(
            f"{100 * covered / width:.1f} %", (1.005, y + 0.5), xycoords=("axes fraction", "data"),
            va="center", color=TEXT, fontsize=8,
        )  # fmt: skip
    return top - len(rows)


def _draw_spans(axes: Any, spans: Spans, style: _Style, y: float, *, zero_ns: int, width: int) -> None:
    start, end = coalesce(spans, width // MOST_RECTANGLES)
    boxes = np.stack([(start - zero_ns) / 1e6, (end - start) / 1e6], axis=1)
    is_wide = boxes[:, 1] * 1e6 >= width * _HATCHED_FROM
    wide, faces = boxes[is_wide], boxes if style.filled else boxes[~is_wide]
    if len(faces):
        alpha = 1.0 if style.filled else 0.45
        axes.broken_barh(faces.tolist(), (y + 0.12, 0.76), facecolors=style.colour, linewidth=0.0, alpha=alpha)
    if style.edge_points and len(wide):
        axes.broken_barh(
            wide.tolist(), (y + 0.12, 0.76), facecolors="none", hatch=style.hatch or None,
            edgecolors=_EDGE if style.filled else style.colour, linewidth=style.edge_points,
        )  # fmt: skip


def _draw_steps(
    axes: Any, timeline: Timeline, seen: Activity, band: tuple[float, float], *, zero_ns: int, shown: tuple[int, int]
) -> None:
    found = [step for step in steps(timeline, seen.rank) if step.name != Mark.NONE.value]
    found = [step for step in found if step.start_ns < shown[1] and step.end_ns > shown[0]]
    for step in found:
        for edge in (step.start_ns, step.end_ns):
            if shown[0] <= edge <= shown[1]:
                x = (edge - zero_ns) / 1e6
                axes.plot([x, x], [band[0] + 0.1, band[1] - 0.1], color=TEXT, linewidth=0.8, linestyle=(0, (3, 2)))
    if len(found) <= _STEP_LABELS:
        for number, step in enumerate(found):
            name = f"step {step.name.split('#')[1]}" if step.name.startswith(Mark.PROFILER) else f"step {number}"
            middle = (max(step.start_ns, shown[0]) + min(step.end_ns, shown[1])) / 2
            axes.annotate(name, ((middle - zero_ns) / 1e6, band[0] + 0.05), ha="center", color=TEXT, fontsize=7)


def _finish(
    figure: Any, axes: Any, ticks: list[tuple[float, str]], *, top: float, limits: tuple[float, ...], with_copy: bool
) -> None:
    from matplotlib.patches import Patch

    axes.set_xlim(*limits)
    axes.set_ylim(top + 0.5, 0.6)
    axes.set_yticks([y for y, _ in ticks], [label for _, label in ticks], color=TEXT, fontsize=8)
    axes.set_xlabel("milliseconds", color=TEXT, fontsize=9)
    axes.tick_params(colors=TEXT, labelsize=8)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(TEXT)
    styles = [_COMPUTE, _EXPOSED, _HIDDEN, *([_COPY] if with_copy else []), _IDLE]
    handles = [
        Patch(
            facecolor=style.colour if style.filled else "none",
            edgecolor=_EDGE if style.filled else style.colour,
            hatch=style.hatch or None,
            linewidth=style.edge_points,
            label=style.label,
        )
        for style in styles
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, labelcolor=TEXT, fontsize=8
    )
