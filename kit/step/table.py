"""A step's plan, and what its check found, as tables."""

from kit.graph.words import bytes_text, source_text
from kit.step.record import Check, Estimate, Place, Plan, Send
from kit.tables import Table

_HEAD = ("#", "collective", "phase", "group", "put in", "dtype", "parameters")
_LANE = ("start ms", "end ms", "exposed ms")
_ORDER = ("compute before", "can hide it")


def table(plan: Plan, *, limit: int = 40) -> Table:
    """One row a collective, in order; the first `limit`, the rest is counted in a note.

    With an estimate it has the start and end of each on the communication lane and what of it is exposed;
    without one, how many compute nodes run before it and how many can hide it.
    """
    spans = plan.estimate.spans if plan.estimate is not None else ()
    rows = []
    for number, send in enumerate(plan.sends[:limit]):
        if spans:
            span = spans[number]
            times = [_ms(span.start), _ms(span.end), _ms(span.exposed)]
        else:
            times = [str(send.nodes_before), str(send.nodes_hiding)]
        rows.append((*_cells(number, send), *times, send.module, _short(send.source)))
    head = (*_HEAD, *(_LANE if spans else _ORDER), "module", "line")
    words = (1, 2, 3, 5, 6, len(head) - 2, len(head) - 1)
    return Table(head=head, rows=tuple(rows), notes=tuple(_notes(plan, limit)), left=words)


def check_table(check: Check) -> Table:
    """One row a rule; under it, where it is broken, the path of nodes with the user's lines."""
    rows = tuple(
        (
            finding.rule,
            "broken" if finding.breaches else "holds" if finding.proved else "nothing to prove",
            str(finding.proved),
            str(len(finding.breaches)),
        )
        for finding in check.findings
    )
    notes = [f"{breach.what}: {path_text(breach.path)}" for finding in check.findings for breach in finding.breaches]
    if not rows:
        notes.append("this plan was saved before plans were checked; make it again")
    return Table(head=("rule", "", "proved for", "broken for"), rows=rows, notes=tuple(notes), left=(0, 1))


def path_text(path: tuple[Place, ...]) -> str:
    """`mm_3 (model.py:12: x @ w) -> all_reduce -> ...`."""
    return " -> ".join(f"{place.node} ({_short(place.source)})" if place.source else place.node for place in path)


def parameters_text(send: Send) -> str:
    """The first parameter that a collective carries and how many more."""
    more = len(send.parameters) - 1
    return f"{send.parameters[0]}{f' +{more}' if more > 0 else ''}" if send.parameters else ""


def _cells(number: int, send: Send) -> tuple[str, ...]:
    group = f"{send.group} ({send.ranks} ranks)"
    return (str(number), send.name, send.phase, group, bytes_text(send.bytes_in), send.dtype, parameters_text(send))


def _notes(plan: Plan, limit: int) -> list[str]:
    notes = [repr(plan)]
    if len(plan.sends) > limit:
        notes.append(f"{len(plan.sends) - limit} more collectives are not shown")
    if plan.findings:
        notes.append(f"order: {plan.check()!r}")
    if plan.estimate is not None:
        notes += [estimate_text(plan.estimate), f"rates and times: {plan.estimate.sources}"]
    notes += [f"left out: {reason}" for reason in plan.undone]
    if plan.eager_optimizer:
        notes.append(f"{plan.eager_optimizer} takes its own step after the graph: {plan.eager_reason}")
    if plan.unused:
        notes.append(f"not trained, the loss does not depend on them: {', '.join(plan.unused)}")
    return notes


def estimate_text(guess: Estimate) -> str:
    """An estimate in one sentence."""
    source = f"{'from' if guess.measured else 'on'} {guess.hardware}"
    return (
        f"estimated {source}: {guess.seconds * 1e3:.3g} ms a step, compute {guess.compute_seconds * 1e3:.3g} ms, "
        f"exposed communication {guess.exposed_share:.0%}, peak {bytes_text(guess.peak_bytes)}"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"


def _short(source: str) -> str:
    """The file's own name, the line and the code, as far as there is room."""
    text = source_text(source)
    return text if len(text) <= 70 else text[:69] + "…"
