"""Start-up times and graph forms as tables; an empty cell has its reason under the table."""

from kit.graph.words import bytes_text
from kit.step.start_record import Representations, StartUp
from kit.tables import Table

_NONE = "-"


def startup_table(startup: StartUp) -> Table:
    """One row a way to run the step."""
    rows = tuple(
        (
            start.mode,
            _seconds(start.build_seconds),
            _seconds(start.first_seconds),
            _NONE if start.steady_seconds is None else f"{start.steady_seconds * 1e3:.2f}",
            _NONE if start.peak_bytes is None else bytes_text(start.peak_bytes),
            _NONE if start.loss is None else f"{start.loss:.6g}",
        )
        for start in startup.starts
    )
    notes = [repr(startup), f"peak: {startup.peak_method}"]
    notes += [f"{start.mode}: {start.why}" for start in startup.starts if start.why]
    head = ("way", "build s", "first step s", "steady step ms", "peak", "loss at the end")
    return Table(head=head, rows=rows, notes=tuple(notes))


def representations_table(found: Representations) -> Table:
    """One row a form."""
    rows = tuple(
        (
            form.name,
            form.holds,
            _NONE if form.nodes is None else f"{form.nodes:,}",
            _NONE if form.operators is None else f"{form.operators:,}",
            _NONE if form.bytes_made is None else bytes_text(form.bytes_made),
        )
        for form in found.forms
    )
    notes = tuple(f"{form.name}: {form.why}" for form in found.forms if form.why)
    head = ("form", "holds", "nodes", "operators", "values made")
    return Table(head=head, rows=rows, notes=notes, left=(0, 1))


def _seconds(value: float | None) -> str:
    return _NONE if value is None else f"{value:.2f}"
