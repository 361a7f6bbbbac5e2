"""How each record shows itself in a notebook: a static picture and a table.

Records know nothing of pictures and rooms know nothing of IPython; here each kind of record meets
its pictures. They are the same under papermill, in JupyterLab and on a page. Beside `verbs` this is
the only module that may know all rooms.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from kit.comparison import Comparison
from kit.graph.capture_record import Capture
from kit.graph.record import Graph
from kit.partition.record import Cut
from kit.step.passes.record import PassReport, Trials
from kit.step.record import Check, Plan
from kit.step.start_record import Representations, StartUp
from kit.step.verdict_record import Compatibility, Verdict
from kit.tables import Table
from kit.timeline.record import Timeline
from kit.timeline.rows import Measured
from kit.tuning.record import TuneReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A picture as SVG that a notebook shows; `svg` is the text of the `<svg>` element."""

    svg: str
    title: str

    def __repr__(self) -> str:
        return f"Drawing({self.title!r}, {len(self.svg)} characters of SVG)"

    def _repr_html_(self) -> str:
        return _framed(self.svg)


def table(record: Any) -> Table:
    """What a record says, as a table: `print` gives text, a notebook HTML.

    Takes a Plan, a Check of one, PassReport, Trials, Verdict, Compatibility, StartUp, Representations, Timeline, Cut,
    TuneReport, Comparison or what `measure` gives. Raises `TypeError` for anything else.
    """
    show = _TABLES.get(type(record))
    if show is None:
        kinds = ", ".join(kind.__name__ for kind in _TABLES)
        raise TypeError(f"table() got a {type(record).__name__}; it takes a {kinds}")
    module, name = show
    return getattr(import_module(module), name)(record)  # type: ignore[no-any-return]


def draw(graph: Graph | Capture, cut: Cut | None = None) -> Drawing:
    """The picture of a graph, with the parts of a cut of it when one is given.

    Raises `ValueError` when the cut is of another graph, `TypeError` when `graph` is none.
    """
    from kit.graph.svg import to_svg

    if isinstance(graph, Capture):
        graph = graph.graph
    if not isinstance(graph, Graph):
        raise TypeError(
            f"draw() got a {type(graph).__name__}, expected a Graph such as step.graph or kit.capture(...).graph; "
            "other records show themselves in a notebook, kit.table(record) gives their text"
        )

    if cut is None:
        return Drawing(svg=to_svg(graph), title=graph.name)
    if cut.names != graph.names:
        raise ValueError(
            f"the cut is of graph {cut.graph!r} with {len(cut.names)} nodes, the graph given is {graph.name!r} with "
            f"{len(graph)}; pass the graph that was cut"
        )
    parts = [-1 if copies > 1 else int(part) for part, copies in zip(cut.part_of, cut.copies, strict=True)]
    crossing: dict[tuple[int, int], int] = {}
    for value in cut.crossings:
        for reader in value.to_parts:
            key = (value.from_part, reader)
            crossing[key] = crossing.get(key, 0) + value.bytes_of_value
    titles = [
        f"{seconds * 1e6:,.0f} µs, {nodes} nodes" for seconds, nodes in zip(cut.seconds, cut.node_counts, strict=True)
    ]
    return Drawing(
        svg=to_svg(graph, parts=parts, part_bytes=crossing, part_titles=titles),
        title=f"{graph.name} in {cut.parts} parts",
    )


def register(shell: Any) -> None:
    """Let IPython show records; called by `%load_ext kit`."""
    formatter = shell.display_formatter.formatters["text/html"]
    for kind, show in _SHOWN.items():
        formatter.for_type(kind, show)


def _show_graph(graph: Graph) -> str:
    from kit.graph.table import collective_rows, summary, to_html

    collectives = collective_rows(graph)
    tables = to_html(summary(graph), caption="Phases")
    if collectives:
        tables += to_html(collectives, caption="Collectives")
    return draw(graph)._repr_html_() + tables


def _show_capture(capture: Capture) -> str:
    return "".join(_show_graph(graph) for graph in capture.graphs)


def _show_cut(cut: Cut) -> str:
    from kit.partition.report import html, picture

    return html(cut) + _framed(_figure_svg(picture(cut)))


def _show_timeline(timeline: Timeline) -> str:
    from kit.timeline.lanes import to_svg
    from kit.timeline.table import table

    return _framed(to_svg(timeline)) + table(timeline)._repr_html_()


def _show_plan(plan: Plan) -> str:
    from kit.step.lanes import to_svg
    from kit.step.table import table

    picture = "" if plan.estimate is None else _framed(to_svg(plan))
    return picture + table(plan)._repr_html_()


def _show_check(check: Check) -> str:
    from kit.step.table import check_table

    return check_table(check)._repr_html_()


def _show_table(record: StartUp | Representations) -> str:
    return table(record)._repr_html_()


def _show_report(report: TuneReport) -> str:
    from kit.tuning.table import table

    return table(report)._repr_html_()


def _framed(svg: str) -> str:
    """A picture that scrolls inside its cell and never widens the page."""
    return f'<div style="overflow:auto;max-height:80vh;max-width:100%">{svg[svg.index("<svg") :]}</div>'


def _figure_svg(figure: Any) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg")
    return stream.getvalue()


_TABLES: dict[type, tuple[str, str]] = {
    Check: ("kit.step.table", "check_table"),
    Comparison: ("kit.comparison", "table"),
    Compatibility: ("kit.step.verdict_table", "compatibility_table"),
    Cut: ("kit.partition.report", "table"),
    Measured: ("kit.timeline.rows", "table"),
    PassReport: ("kit.step.passes.table", "pass_table"),
    Plan: ("kit.step.table", "table"),
    Representations: ("kit.step.start_table", "representations_table"),
    StartUp: ("kit.step.start_table", "startup_table"),
    Timeline: ("kit.timeline.table", "table"),
    Trials: ("kit.step.passes.table", "trial_table"),
    TuneReport: ("kit.tuning.table", "table"),
    Verdict: ("kit.step.verdict_table", "verdict_table"),
}

_SHOWN: dict[type, Callable[[Any], str]] = {
    Capture: _show_capture,
    Check: _show_check,
    Cut: _show_cut,
    Graph: _show_graph,
    PassReport: lambda report: table(report)._repr_html_(),
    Plan: _show_plan,
    Representations: _show_table,
    StartUp: _show_table,
    Timeline: _show_timeline,
    Trials: lambda trials: table(trials)._repr_html_(),
    TuneReport: _show_report,
}
