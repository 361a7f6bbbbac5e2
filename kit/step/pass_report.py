"""What each pass of a step did, as figures: read off its graphs, estimated, and timed when asked."""

from collections.abc import Callable, Sequence
from typing import Any

from kit.graph.liveness import peak_bytes
from kit.graph.record import Kind
from kit.step.estimate import estimate
from kit.step.hardware import Hardware
from kit.step.inputs import Inputs
from kit.step.lower import Stage
from kit.step.mesh import Axes
from kit.step.passes.record import PassReport, StageRow
from kit.step.timing import slowest_seconds

Run = Callable[..., Any]


def report_of(stages: Sequence[Stage], axes: Axes, hardware: Hardware) -> PassReport:
    """Nodes, collectives, bytes, predicted peak and predicted exposed communication after each pass."""
    return PassReport(rows=tuple(_row(stage, axes, hardware, None) for stage in stages), hardware=hardware.name)


def measured_report_of(
    stages: Sequence[Stage], axes: Axes, hardware: Hardware, *, inputs: Inputs, window: Sequence[Any]
) -> PassReport:
    """The same, with each stage run node by node and timed. A collective call; what it trains is undone."""
    times = slowest_seconds([stage.module for stage in stages], inputs, axes, window=window)
    rows = tuple(_row(stage, axes, hardware, time) for stage, time in zip(stages, times, strict=True))
    return PassReport(rows=rows, hardware=hardware.name, executor="eager")


def _row(stage: Stage, axes: Axes, hardware: Hardware, seconds: float | None) -> StageRow:
    graph = stage.graph
    guess = estimate(graph, hardware, dict(axes.names))
    sent = {row for row, kind in enumerate(graph.kinds) if kind is Kind.COLLECTIVE}
    edges = zip(graph.edge_from.tolist(), graph.edge_to.tolist(), strict=True)
    return StageRow(
        name=stage.name,
        nodes=len(graph),
        collectives=len(sent),
        bytes_sent=sum(int(graph.bytes_out[source]) for source, end in edges if end in sent),
        peak_bytes=peak_bytes(graph),
        exposed_seconds=guess.exposed_seconds,
        seconds=seconds,
        failure=stage.failure,
    )
