"""A timeline of all ranks to move about in: a canvas of rows over one clock, with search, details and range tables.

The browser gets the events once, as binary columns, and draws whatever is visible by itself; the kernel answers only
what needs the record: details of the selected event and the measures of a range. `selected` and `window` are traits,
so that other views can share them (`traitlets.link`).
"""

from typing import Any

import anywidget
import traitlets

from kit import colours
from kit.step import lanes as planned
from kit.step.record import Plan
from kit.timeline import lanes as picture
from kit.timeline.record import Timeline
from kit.timeline.table import table, table_within
from widgets.module import module_of, styles_of
from widgets.timeline_details import Describer
from widgets.timeline_lanes import LOOKS, lanes_of

_CODE = ("canvas.js", "timeline_lanes.js", "timeline_canvas.js", "timeline.js")


class TimelineView(anywidget.AnyWidget):
    """A `Timeline` as rows for ranks, streams and threads, collectives joined across ranks.

    `plan`: one with an estimate (`step.plan_on("h200")`) is drawn above each measured step of the first rank. Memory
    that the timeline holds (`kit.profile(memory=True)`, `kit.read(path, memory=True)`) is drawn as an area for each
    rank and device. `height`: the most that the canvas takes, in pixels; more rows scroll.

    Traits: `selected` is a row of the timeline (-1 for none); `window` is (from, to) in milliseconds after the first
    thing that any rank did, as in `kit.timeline.lanes`, () for everything; the table is that of the window. `hosts`:
    whether threads of the host are shown. Setting any of them from Python moves the view.
    Raises `TypeError` for a record that is no Timeline, `ValueError` for a plan without an estimate; a row or window
    that cannot be is a `TraitError`.
    """

    _esm = module_of(*_CODE)
    _css = styles_of("timeline.css")

    tracks: traitlets.List[Any] = traitlets.List().tag(sync=True)
    names = traitlets.List(traitlets.Unicode()).tag(sync=True)
    looks: traitlets.List[Any] = traitlets.List().tag(sync=True)
    bounds = traitlets.List(traitlets.Float()).tag(sync=True)
    start = traitlets.Bytes().tag(sync=True)
    duration = traitlets.Bytes().tag(sync=True)
    kind = traitlets.Bytes().tag(sync=True)
    name = traitlets.Bytes().tag(sync=True)
    row = traitlets.Bytes().tag(sync=True)
    joined = traitlets.Bytes().tag(sync=True)
    memory_at = traitlets.Bytes().tag(sync=True)
    memory_bytes = traitlets.Bytes().tag(sync=True)
    description = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int(460).tag(sync=True)
    hosts = traitlets.Bool().tag(sync=True)
    selected = traitlets.Int(-1).tag(sync=True)
    details: traitlets.List[Any] = traitlets.List().tag(sync=True)
    window = traitlets.List(traitlets.Float()).tag(sync=True)
    table: traitlets.List[Any] = traitlets.List().tag(sync=True)

    def __init__(
        self,
        timeline: Timeline,
        *,
        plan: Plan | None = None,
        height: int = 460,
        hosts: bool | None = None,
    ) -> None:
        _refuse(timeline, plan)
        self.timeline, self._plan = timeline, plan
        found = lanes_of(timeline, plan=plan)
        self._zero_ns = found.zero_ns
        self._describer = Describer(timeline, zero_ns=found.zero_ns)
        columns = ("start", "duration", "kind", "name", "row", "joined", "memory_at", "memory_bytes")
        super().__init__(
            tracks=[
                {"label": t.label, "rank": t.rank, "role": t.role, "first": t.first, "count": t.count}
                for t in found.tracks
            ],
            names=list(found.names),
            looks=[
                {"word": word, "colour": colour, "pattern": pattern, "ink": colours.ink_on(colour)}
                for word, colour, pattern in LOOKS
            ],
            bounds=[found.first_ns, found.last_ns],
            description=repr(self) + (f", {found.unseen} events nested too deep to show" if found.unseen else ""),
            height=height,
            hosts=timeline.cpu_only if hosts is None else hosts,
            **{column: getattr(found, column).tobytes() for column in columns},
        )
        self._measure_window()

    def __repr__(self) -> str:
        return f"TimelineView({self.timeline!r})"

    @traitlets.validate("selected")
    def _is_a_row(self, proposal: dict[str, Any]) -> int:
        row = int(proposal["value"])
        if not -1 <= row < len(self.timeline):
            raise traitlets.TraitError(
                f"selected is {row}, expected a row of the timeline, 0 to {len(self.timeline) - 1}, or -1 for none"
            )
        return row

    @traitlets.validate("window")
    def _has_length(self, proposal: dict[str, Any]) -> list[float]:
        window = [float(edge) for edge in proposal["value"]]
        if window and (len(window) != 2 or not window[0] < window[1]):
            raise traitlets.TraitError(
                f"window is {window}, expected (from, to) in milliseconds with from < to, or () for everything"
            )
        return window

    @traitlets.observe("selected")
    def _describe(self, _: Any) -> None:
        said = self._describer.describe(self.selected) if self.selected >= 0 else []
        # The row goes in front: an answer that comes late must not be taken for that of the next event.
        self.details = [[str(self.selected), ""], *map(list, said)] if said else []

    @traitlets.observe("window")
    def _measure_window(self, _: Any = None) -> None:
        if self.window:
            first, last = (self._zero_ns + round(edge * 1e6) for edge in self.window)
            shown = table_within(self.timeline, first, max(last, first + 1))
            title = f"{self.window[0]:.3f} to {self.window[1]:.3f} ms"
        else:
            shown, title = table(self.timeline), "The whole timeline"
        self.table = [title, list(shown.head), [list(row) for row in shown.rows]]

    def _repr_mimebundle_(self, **arguments: Any) -> Any:
        """The live view, and for pages without a kernel the static lanes with their table."""
        found = super()._repr_mimebundle_(**arguments)
        shown, described = found if isinstance(found, tuple) else (found or {}, {})
        window = (self.window[0], self.window[1]) if self.window else None
        pictures = [picture.to_svg(self.timeline, window=window)]
        if self._plan is not None:
            pictures.insert(0, planned.to_svg(self._plan))
        frame = "".join(
            f'<div style="overflow:auto;max-width:100%">{svg[svg.index("<svg") :]}</div>' for svg in pictures
        )
        rows = table(self.timeline) if window is None else table_within(
            self.timeline, *(self._zero_ns + round(edge * 1e6) for edge in window)
        )  # fmt: skip
        return {**shown, "text/plain": repr(self), "text/html": frame + rows._repr_html_()}, described


def _refuse(timeline: Any, plan: Plan | None) -> None:
    if not isinstance(timeline, Timeline):
        raise TypeError(f"TimelineView got a {type(timeline).__name__}, expected a Timeline of kit.read or kit.profile")
    if plan is not None and plan.estimate is None:
        raise ValueError("this plan has no times to draw beside the trace; take that of step.plan_on('h200')")
