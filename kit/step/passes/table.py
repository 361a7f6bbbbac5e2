"""The passes of a step, and the variants that were timed, as tables."""

from kit.graph.words import bytes_text
from kit.step.passes.record import PassReport, Trials
from kit.tables import Table


def pass_table(report: PassReport) -> Table:
    """One row a pass; what is predicted and what is measured is said in the head."""
    head = ("pass", "nodes", "collectives", "put in", "peak, predicted", "exposed, predicted", "step, measured", "")
    rows = tuple(
        (
            row.name,
            f"{row.nodes:,}",
            str(row.collectives),
            bytes_text(row.bytes_sent),
            bytes_text(row.peak_bytes),
            _milliseconds(row.exposed_seconds),
            _milliseconds(row.seconds),
            "undone" if row.failure else "",
        )
        for row in report.rows
    )
    notes = [f"exposed communication is estimated on {report.hardware}"]
    if report.executor:
        notes.append(f"measured with executor {report.executor!r}, slowest rank")
    notes += [f"left out: {row.failure}" for row in report.rows if row.failure]
    return Table(head=head, rows=rows, notes=tuple(notes), left=(0, 7))


def trial_table(trials: Trials) -> Table:
    """One row a variant."""
    head = ("variant", "nodes", "collectives", "peak, predicted", "step, measured", "")
    rows = tuple(
        (
            row.name,
            f"{row.nodes:,}",
            str(row.collectives),
            bytes_text(row.peak_bytes),
            f"as {row.same_as}" if row.same_as else _milliseconds(row.seconds),
            "kept" if row.name == trials.kept else "",
        )
        for row in trials.rows
    )
    note = f"median of a step on the slowest rank, executor {trials.executor!r}"
    return Table(head=head, rows=rows, notes=(note,), left=(0, 5))


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3f} ms"
