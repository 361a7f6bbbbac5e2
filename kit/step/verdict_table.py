"""Verdicts as tables: one model's counts with the reasons, and strategies against ways to compile."""

from kit.step.verdict_record import Compatibility, Verdict
from kit.tables import Table


def verdict_table(verdict: Verdict) -> Table:
    """Counts inside and outside the graphs; the sentence, the reasons and the breaks under them."""
    rows = (
        ("graphs run in the forward", str(verdict.forward_graphs), ""),
        ("graphs run in the backward", str(verdict.backward_graphs), ""),
        ("graph breaks", str(len(verdict.breaks)), ""),
        ("operators", str(verdict.operators_inside), str(verdict.operators_outside)),
        ("collectives", str(verdict.collectives_inside), str(verdict.collectives_outside)),
    )
    notes = (verdict.sentence, *verdict.reasons[1:], *(f"break at {cut}" for cut in verdict.breaks))
    return Table(head=("counted in one run", "inside graphs", "outside"), rows=rows, notes=notes)


def compatibility_table(found: Compatibility) -> Table:
    """A row for each strategy, a column for each way to compile."""
    ways = tuple(dict.fromkeys(cell.way for cell in found.cells))
    strategies = dict.fromkeys(cell.strategy for cell in found.cells)
    rows = tuple((strategy, *(str(found[strategy, way]) for way in ways)) for strategy in strategies)
    static = [
        f"{cell.strategy}, {cell.way}: {cell.verdict.sentence}" for cell in found.cells if cell.verdict is not None
    ]
    return Table(head=("strategy", *ways), rows=rows, notes=(repr(found), *static), left=tuple(range(len(ways) + 1)))
