"""Draw a plan's estimate on two lanes: what computes, what communicates, and where one waits for the other.

A static matplotlib picture without pyplot, on a transparent ground with mid-grey text (it reads on light and on dark).
Nothing is told by colour alone: phases carry a letter, collectives their number in the table and a hatch, what is
exposed stands on a line of its own with a thick edge, waiting is an empty outline.
"""

import io
from dataclasses import dataclass
from typing import Any

from kit import colours
from kit.step.estimate import WAITING
from kit.step.record import Estimate, Plan
from kit.step.table import estimate_text

TEXT = "#808080"  # reads on white and on black
_EDGE = "#1a1a1a"
_WIDTH_INCHES = 9.5
_LANE_SHARE = 0.8  # of the figure's width, a little less than what the lanes get
_PHASES = {
    "forward": ("F", colours.FORWARD),
    "backward": ("B", colours.BACKWARD),
    "optimizer": ("O", colours.OPTIMIZER),
}
_COMPUTE, _COMMUNICATION, _EXPOSED = 2.0, 1.0, 0.0  # heights of the lanes
_UNITS = ((1.0, "seconds"), (1e-3, "milliseconds"), (1e-6, "microseconds"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    """A stretch of a lane, in the picture's unit, and the words that stand in it where they fit."""

    start: float
    width: float
    words: str


class NoEstimateError(ValueError):
    """A plan without times has no lanes."""


def lanes(plan: Plan) -> Any:
    """A matplotlib `Figure` of the estimated step. Raises `NoEstimateError` when the plan has no estimate."""
    from matplotlib.figure import Figure

    guess = plan.estimate
    if guess is None:
        raise NoEstimateError(
            "this plan has no times to draw; give it some: step.plan_on('h200'), or kit.plan_on(step, "
            "timeline=kit.profile(step, batches)) for measured ones"
        )
    unit, name = next(((u, n) for u, n in _UNITS if guess.seconds >= u), _UNITS[-1])
    figure = Figure(figsize=(_WIDTH_INCHES, 2.3), layout="constrained")
    figure.patch.set_alpha(0.0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0.0)
    _draw_compute(axes, guess, unit)
    _draw_communication(axes, guess, unit)
    _finish(figure, axes, guess, unit, name)
    return figure


def to_svg(plan: Plan) -> str:
    """The picture as SVG text; its text stays text."""
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "kit"}):
        lanes(plan).savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Title": repr(plan)})
    return buffer.getvalue()


def to_png(plan: Plan, *, dpi: int = 144) -> bytes:
    """The picture as PNG bytes with a transparent ground."""
    buffer = io.BytesIO()
    lanes(plan).savefig(buffer, format="png", transparent=True, dpi=dpi)
    return buffer.getvalue()


def _draw_compute(axes: Any, guess: Estimate, unit: float) -> None:
    for phase, (letter, colour) in _PHASES.items():
        boxes = [_box(b.start, b.end, unit, letter) for b in guess.compute if b.phase == phase]
        _draw(axes, boxes, _COMPUTE, guess, unit, facecolors=colour, edgecolors=_EDGE, linewidth=0.4)
    idle = [_box(b.start, b.end, unit, "") for b in guess.compute if b.phase == WAITING]
    _draw(axes, idle, _COMPUTE, guess, unit, facecolors="none", edgecolors=colours.IDLE, linewidth=0.6)


def _draw_communication(axes: Any, guess: Estimate, unit: float) -> None:
    spans = [_box(span.start, span.end, unit, str(number)) for number, span in enumerate(guess.spans)]
    _draw(
        axes, spans, _COMMUNICATION, guess, unit,
        facecolors=colours.HIDDEN, edgecolors=_EDGE, linewidth=0.4, hatch=2 * colours.HATCH,
    )  # fmt: skip
    waits = [block for block in guess.compute if block.phase == WAITING]
    exposed = [
        _box(max(span.start, wait.start), min(span.end, wait.end), unit, "")
        for span in guess.spans
        if span.exposed
        for wait in waits
        if min(span.end, wait.end) > max(span.start, wait.start)
    ]
    _draw(
        axes, exposed, _EXPOSED, guess, unit,
        facecolors=colours.EXPOSED, edgecolors=_EDGE, linewidth=1.2, hatch=2 * colours.HATCH,
    )  # fmt: skip


def _box(start: float, end: float, unit: float, words: str) -> _Box:
    return _Box(start=start / unit, width=(end - start) / unit, words=words)


def _draw(axes: Any, boxes: list[_Box], y: float, guess: Estimate, unit: float, **style: Any) -> None:
    """Draw boxes on a lane; words stand only in a box that is wider than they are, so none overlap."""
    if not boxes:
        return
    whole = max(guess.seconds / unit, 1e-12)
    least = whole / 2000  # narrower than a pixel: drawn as one, or it would not be seen
    # Hatch and edge of a box narrower than they are would be all ink.
    wide = [box for box in boxes if box.width >= whole / 250]
    narrow = [(box.start, max(box.width, least)) for box in boxes if box.width < whole / 250]
    axes.broken_barh([(box.start, box.width) for box in wide], (y + 0.12, 0.76), **style)
    if narrow:
        face = style["facecolors"] if style["facecolors"] != "none" else style["edgecolors"]
        axes.broken_barh(narrow, (y + 0.12, 0.76), facecolors=face, linewidth=0.0)
    for box in wide:
        inches = box.width / whole * _WIDTH_INCHES * _LANE_SHARE
        if box.words and inches > 0.09 * len(box.words) + 0.06:
            axes.annotate(
                box.words, (box.start + box.width / 2, y + 0.5), ha="center", va="center", fontsize=8, color="#000000",
                bbox={"boxstyle": "square,pad=0.1", "facecolor": style["facecolors"], "edgecolor": "none"},
            )  # fmt: skip


def _finish(figure: Any, axes: Any, guess: Estimate, unit: float, name: str) -> None:
    axes.set_xlim(0.0, max(guess.seconds / unit, 1e-12))
    axes.set_ylim(-0.1, 3.1)
    places = [_COMPUTE + 0.5, _COMMUNICATION + 0.5, _EXPOSED + 0.5]
    axes.set_yticks(places, ["compute", "communication", "of it exposed"], color=TEXT, fontsize=8)
    axes.set_xlabel(f"{name}, estimated", color=TEXT, fontsize=9)
    axes.set_title(estimate_text(guess), color=TEXT, fontsize=8, loc="left")
    axes.tick_params(colors=TEXT, labelsize=8)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(TEXT)
    for y, seconds in zip(places, _totals(guess), strict=True):
        share = seconds / guess.seconds if guess.seconds else 0.0
        axes.annotate(
            f"{share:.0%}", (1.005, y), xycoords=("axes fraction", "data"), va="center", color=TEXT, fontsize=8
        )
    figure.legend(
        handles=_legend(), loc="outside lower center", ncols=6, frameon=False, labelcolor=TEXT, fontsize=8
    )  # fmt: skip


def _totals(guess: Estimate) -> tuple[float, float, float]:
    return guess.compute_seconds, guess.communication_seconds, guess.exposed_seconds


def _legend() -> list[Any]:
    from matplotlib.patches import Patch

    phases = [
        Patch(facecolor=colour, edgecolor=_EDGE, linewidth=0.4, label=f"{letter}: {phase}")
        for phase, (letter, colour) in _PHASES.items()
    ]
    hatch = 2 * colours.HATCH
    return [
        *phases,
        Patch(facecolor="none", edgecolor=colours.IDLE, linewidth=0.6, label="waiting"),
        Patch(facecolor=colours.HIDDEN, edgecolor=_EDGE, linewidth=0.4, hatch=hatch, label="collective (its number)"),
        Patch(facecolor=colours.EXPOSED, edgecolor=_EDGE, linewidth=1.2, hatch=hatch, label="exposed"),
    ]
