"""A step's plan as a table: one row a collective, in order."""

from kit.graph.words import bytes_text
from kit.step.record import Plan
from kit.tables import Table


def table(plan: Plan, *, limit: int = 40) -> Table:
    """The first `limit` collectives of a plan; the rest is counted in a note."""
    head = ("collective", "phase", "put in", "dtype", "compute before", "can hide it", "module", "line")
    rows = tuple(
        (
            send.name,
            send.phase,
            bytes_text(send.bytes_in),
            send.dtype,
            str(send.nodes_before),
            str(send.nodes_hiding),
            send.module,
            _short(send.source),
        )
        for send in plan.sends[:limit]
    )
    notes = [repr(plan)]
    if len(plan.sends) > limit:
        notes.append(f"{len(plan.sends) - limit} more collectives are not shown")
    if plan.estimate is not None:
        guess = plan.estimate
        notes.append(
            f"estimated on {guess.hardware}: {guess.seconds * 1e3:.1f} ms a step, "
            f"compute {guess.compute_seconds * 1e3:.1f} ms, exposed communication {guess.exposed_share:.0%}, "
            f"peak {bytes_text(guess.peak_bytes)}"
        )
    if plan.unused:
        notes.append(f"not trained, the loss does not depend on them: {', '.join(plan.unused)}")
    return Table(head=head, rows=rows, notes=tuple(notes), left=(0, 1, 3, 6, 7))


def _short(source: str) -> str:
    """The file's own name, the line and the code."""
    return source.rpartition("/")[2][:70]
