"""Show a cut: a row for each stage, the values that cross, a picture, and what could not be met.

Takes the record only. Whatever was computed from a model of the hardware is called *modelled*, and a
request that could not be met is said in one sentence: what was asked, what is possible, what to change.
"""

from html import escape
from typing import Any

from kit.graph.words import source_text
from kit.partition.record import EDGE_SHARE_TARGET, NODE_IMBALANCE_TARGET, Balance, Cut, megabytes
from kit.tables import Table

_TEXT = "#808080"  # mid-grey reads on light and on dark
_WEIGHED = {Balance.TIME: "time", Balance.COUNT: "nodes", Balance.MEMORY: "memory"}


def table(cut: Cut) -> Table:
    """One row a stage; under it the sentences of `findings`."""
    mean = float(cut.seconds.mean())
    per_second, unit = _time_unit(cut)
    rows = tuple(
        (
            str(part),
            f"{per_second * cut.seconds[part]:.4g}",
            _percent(cut.seconds[part] / mean - 1 if mean else 0.0, signed=True),
            megabytes(int(cut.bytes_of_parameters[part])),
            megabytes(int(cut.bytes_of_memory[part])),
            str(int(cut.node_counts[part])),
            megabytes(int(cut.bytes_received[part])),
            megabytes(int(cut.bytes_sent[part])),
        )
        for part in range(cut.parts)
    )
    how = "modelled" if cut.modelled else "measured"
    head = ("stage", f"{how} {unit}", "against mean", "parameters", "modelled memory", "nodes", "receives", "sends")
    return Table(head=head, rows=rows, notes=findings(cut))


def crossing_table(cut: Cut, *, limit: int = 40) -> Table:
    """The values that cross, the most bytes first; what is beyond `limit` is counted in a note."""
    rows = tuple(
        (
            crossing.name,
            crossing.shape,
            megabytes(crossing.bytes_sent),
            str(crossing.from_part),
            ", ".join(map(str, crossing.to_parts)),
            crossing.module,
            source_text(crossing.source),
        )
        for crossing in cut.crossings[:limit]
    )
    notes: list[str] = []
    if len(cut.crossings) > limit:
        rest = sum(crossing.bytes_sent for crossing in cut.crossings[limit:])
        notes.append(f"{len(cut.crossings) - limit} more values are not shown, {megabytes(rest)} together")
    head = ("value", "type and shape", "bytes sent", "from stage", "to stages", "module", "line")
    return Table(head=head, rows=rows, notes=tuple(notes), left=(0, 1, 5, 6))


def findings(cut: Cut) -> tuple[str, ...]:
    """Sentences about a cut: itself, the request if it was not met, the two targets, copies of parameters."""
    found = [repr(cut)]
    if not cut.is_within_eps:
        found.append(shortfall(cut))
    found.append(
        f"{_percent(cut.edge_share)} of {cut.edges} edges are cut (target below {_percent(EDGE_SHARE_TARGET)}: "
        f"{_met(cut.meets_edge_target)}); node counts differ by {_percent(cut.node_imbalance)} (target below "
        f"{_percent(NODE_IMBALANCE_TARGET)}: {_met(cut.meets_node_target)}), memory by "
        f"{_percent(cut.memory_imbalance)}"
    )
    if cut.balance is Balance.TIME and not cut.meets_node_target:
        found.append('balance="count" aims at equal node counts; the slowest stage sets the pace, whatever its count')
    found.extend(str(replica) for replica in cut.replicas)
    if cut.optimal_for_order:
        found.append(f"no contiguous cut of the order {cut.order!r} within this balance crosses fewer bytes")
    return tuple(found)


def shortfall(cut: Cut) -> str:
    """Why the asked balance was not met: what was asked, what is possible, what to change."""
    asked = f"asked for {_percent(cut.eps_asked)} imbalance at k={cut.parts}"
    fewer = f"use k <= {cut.feasible_parts}"
    if cut.floor_imbalance > cut.eps_asked:
        return (
            f"{asked}; {cut.floor_node} alone is {_percent(cut.floor_share)} of the {_WEIGHED[cut.balance]}, best "
            f"possible {_percent(cut.floor_imbalance)}, reached {_percent(cut.eps_reached)}; "
            f"{fewer} or split that node by tensor parallelism"
        )
    return (
        f"{asked}; the better of two orders reached {_percent(cut.eps_reached)}; "
        f"{fewer} or eps={cut.eps_reached + 0.005:.2f}"
    )


def html(cut: Cut) -> str:
    """The first line, the stages and the crossing values as HTML; every text of the model is escaped."""
    crossing = crossing_table(cut)._repr_html_() if cut.crossings else "<p>Nothing crosses.</p>"
    return (
        f"<p><strong>{escape(cut.graph)}</strong>: {escape(repr(cut))}</p>"
        f"{table(cut)._repr_html_()}<details open><summary>{len(cut.crossings)} values cross</summary>{crossing}"
        "</details>"
    )


def picture(cut: Cut) -> Any:
    """A matplotlib `Figure`: bars of time, memory, parameters and nodes for each stage, numbered as well as coloured.

    The dashed line is the mean. Where the biggest node weighs more than the mean, a dotted line in the
    panel of the balanced quantity shows it: the heaviest stage cannot be below.
    """
    from matplotlib import color_sequences
    from matplotlib.figure import Figure

    colours = [color_sequences["petroff10"][part % 10] for part in range(cut.parts)]
    how = "modelled" if cut.modelled else "measured"
    per_second, unit = _time_unit(cut)
    panels: list[tuple[str, Any, Balance | None]] = [
        (f"time, {how} ({unit})", per_second * cut.seconds, Balance.TIME),
        ("memory, modelled (MB)", cut.bytes_of_memory / 1e6, Balance.MEMORY),
        ("parameters (MB)", cut.bytes_of_parameters / 1e6, None),
        ("nodes", cut.node_counts, Balance.COUNT),
    ]
    figure = Figure(figsize=(11, 1.3 + 0.32 * cut.parts), layout="constrained")
    figure.patch.set_alpha(0.0)
    for axes, (title, amounts, weighed) in zip(figure.subplots(1, 4, sharey=True), panels, strict=True):
        bars = axes.barh(range(cut.parts), amounts, color=colours, edgecolor=_TEXT)
        axes.bar_label(bars, [f"{amount:.3g}" for amount in amounts], padding=2, color=_TEXT, fontsize=8)
        axes.axvline(amounts.mean(), linestyle="--", color=_TEXT, linewidth=1)
        if weighed is cut.balance and cut.floor_imbalance:
            axes.axvline(cut.floor_share * amounts.sum(), linestyle=":", color=_TEXT, linewidth=1.5)
        _dress(axes, title, cut.parts)
    figure.suptitle(repr(cut), color=_TEXT, fontsize=9)
    dotted = f"; dotted: the least possible, because of {cut.floor_node}" if cut.floor_imbalance else ""
    figure.supxlabel(f"dashed: the mean{dotted}", color=_TEXT, fontsize=8)
    return figure


def _dress(axes: Any, title: str, parts: int) -> None:
    """Titles and ticks in mid-grey on a transparent ground; stage 0 on top."""
    axes.set_title(title, color=_TEXT, fontsize=9)
    axes.set_yticks(range(parts), [f"stage {part}" for part in range(parts)])
    axes.set_ylim(parts - 0.4, -0.6)
    axes.margins(x=0.18)
    axes.tick_params(colors=_TEXT, labelsize=8)
    axes.patch.set_alpha(0.0)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_TEXT)


def _time_unit(cut: Cut) -> tuple[float, str]:
    """Units a second and their name, so that the slowest stage has a readable number."""
    slowest = float(cut.seconds.max())
    return next(((scale, name) for scale, name in ((1.0, "s"), (1e3, "ms")) if slowest * scale >= 1), (1e6, "us"))


def _percent(share: float, *, signed: bool = False) -> str:
    text = f"{100 * share:+.1f}" if signed else f"{100 * share:.1f}"
    return f"{text.removesuffix('.0')} %"


def _met(is_met: bool) -> str:
    return "met" if is_met else "not met"
