"""Tables of a graph: what each phase holds, which collectives it starts, what a pass changed.

Rows are plain records, so that a test, a frame or a page can use them; one function writes any of
them as HTML.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.graph.describe_groups import operation
from kit.graph.record import Graph, Kind, Phase
from kit.graph.words import bytes_text, flops_text, safe

_NO_WORK = (Kind.INPUT, Kind.CONSTANT, Kind.OUTPUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRow:
    """One phase: nodes that are no inputs, by kind, and how many are mapped to the user's model.

    `with_module` and `with_source`: shares from 0 to 1 of `nodes`; 1 for a phase without nodes.
    """

    phase: Phase
    nodes: int
    compute: int
    views: int
    collectives: int
    waits: int
    flops: float
    bytes_moved: int
    with_module: float
    with_source: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """All collectives of one name, group and phase; `bytes_carried` is the larger of input and output."""

    name: str
    phase: Phase
    group: str
    count: int
    bytes_carried: int
    mapped: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    """One quantity before and after a pass."""

    what: str
    before: int
    after: int


def summary(graph: Graph) -> list[PhaseRow]:
    """A row for each phase that has nodes, inputs and outputs left out."""
    rows = []
    kinds = np.array(graph.kinds, object)
    module, source = _known(graph.modules), _known(graph.sources)
    for phase in Phase:
        mine = _working(graph) & _of_phase(graph, phase)
        if not mine.any():
            continue
        rows.append(
            PhaseRow(
                phase=phase,
                nodes=int(mine.sum()),
                compute=int((mine & (kinds == Kind.COMPUTE)).sum()),
                views=int((mine & ((kinds == Kind.VIEW) | (kinds == Kind.GETITEM))).sum()),
                collectives=int((mine & (kinds == Kind.COLLECTIVE)).sum()),
                waits=int((mine & (kinds == Kind.WAIT)).sum()),
                flops=float(graph.flops[mine].sum()),
                bytes_moved=int(graph.bytes_moved[mine].sum()),
                with_module=_share(mine, module),
                with_source=_share(mine, source),
            )
        )
    return rows


def collective_rows(graph: Graph) -> list[CollectiveRow]:
    """A row for each name, phase and group of collectives, in order of first appearance."""
    groups: dict[tuple[str, Phase, str], list[int]] = {}
    for row, kind in enumerate(graph.kinds):
        if kind is Kind.COLLECTIVE:
            key = operation(graph.targets[row]), graph.phases[row], graph.groups[row]
            groups.setdefault(key, []).append(row)
    carried = np.maximum(graph.bytes_out, graph.bytes_moved - graph.bytes_out)
    mapped = _known(graph.modules) | _known(graph.sources)
    return [
        CollectiveRow(
            name=name,
            phase=phase,
            group=group,
            count=len(rows),
            bytes_carried=int(carried[rows].sum()),
            mapped=float(mapped[rows].mean()),
        )
        for (name, phase, group), rows in groups.items()
    ]


def mapped_share(graph: Graph) -> dict[Phase, float]:
    """For each phase with nodes, the share (0 to 1) whose module or source line is known."""
    mapped = _known(graph.modules) | _known(graph.sources)
    phases = {phase: _working(graph) & _of_phase(graph, phase) for phase in Phase}
    return {phase: _share(mine, mapped) for phase, mine in phases.items() if mine.any()}


def collectives_mapped_share(graph: Graph) -> float:
    """The share (0 to 1) of collectives whose module or source line is known; 1 without collectives."""
    mine = np.array([kind is Kind.COLLECTIVE for kind in graph.kinds], bool)
    return _share(mine, _known(graph.modules) | _known(graph.sources))


def compare(before: Graph, after: Graph) -> list[ChangeRow]:
    """What a pass changed: nodes, collectives by name, bytes they carry, waits."""
    rows = [ChangeRow(what="nodes", before=len(before), after=len(after))]
    counts = [_by_name(graph) for graph in (before, after)]
    for name in dict.fromkeys([*counts[0], *counts[1]]):
        old, new = counts[0].get(name, (0, 0)), counts[1].get(name, (0, 0))
        rows.append(ChangeRow(what=name, before=old[0], after=new[0]))
        rows.append(ChangeRow(what=f"{name}: bytes carried", before=old[1], after=new[1]))
    waits = [sum(kind is Kind.WAIT for kind in graph.kinds) for graph in (before, after)]
    return [*rows, ChangeRow(what="waits", before=waits[0], after=waits[1])]


def to_html(rows: Sequence[Any], *, caption: str = "") -> str:
    """Any list of one kind of row record as an HTML table; "" for no rows. Text is escaped."""
    if not rows:
        return ""
    fields = [field.name for field in dataclasses.fields(rows[0])]
    head = "".join(f"<th>{safe(name.replace('_', ' '))}</th>" for name in fields)
    body = "".join("<tr>" + "".join(_cell(row, name) for name in fields) + "</tr>" for row in rows)
    title = f"<caption>{safe(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(row: Any, name: str) -> str:
    value = getattr(row, name)
    if isinstance(value, str):
        return f'<td style="text-align:left">{safe(value)}</td>'
    return f'<td style="text-align:right">{safe(_number(row, name, value))}</td>'


def _number(row: Any, name: str, value: float) -> str:
    if "bytes" in name or (isinstance(row, ChangeRow) and "bytes" in row.what):
        return bytes_text(value)
    if name == "flops":
        return flops_text(value)
    return f"{value:.0%}" if isinstance(value, float) else f"{value:,}"


def _by_name(graph: Graph) -> dict[str, tuple[int, int]]:
    """(count, bytes carried) of the collectives of each name."""
    totals: dict[str, tuple[int, int]] = {}
    for row in collective_rows(graph):
        count, carried = totals.get(row.name, (0, 0))
        totals[row.name] = count + row.count, carried + row.bytes_carried
    return totals


def _working(graph: Graph) -> NDArray[np.bool_]:
    return np.array([kind not in _NO_WORK for kind in graph.kinds], bool)


def _of_phase(graph: Graph, phase: Phase) -> NDArray[np.bool_]:
    return np.array([found is phase for found in graph.phases], bool)


def _known(column: Sequence[str]) -> NDArray[np.bool_]:
    return np.array([bool(text) for text in column], bool)


def _share(mine: NDArray[np.bool_], known: NDArray[np.bool_]) -> float:
    return float(known[mine].mean()) if mine.any() else 1.0
