"""At most five findings on a timeline, the most seconds lost first.

A finding must cost more than 1 % of the window of the rank that loses most by it. Time in a profile is longer than
without it (20 to 60 % on this project's captures), and host time more than device time, so the seconds are those of
the profile and never a promise of speed.
"""

from kit.timeline.attribution import has_lines
from kit.timeline.diagnosis.communication import invisible, transfer, waiting
from kit.timeline.diagnosis.device import exposed_copies, recomputes, unfused
from kit.timeline.diagnosis.facts import Facts, facts_of
from kit.timeline.diagnosis.finding import Diagnosis
from kit.timeline.diagnosis.host import between_kernels, late_host, loading, synchronises, unexplained
from kit.timeline.intervals import length
from kit.timeline.record import Timeline

MOST_FINDINGS = 5
LEAST_SHARE = 0.01
RULES = (
    waiting, transfer, invisible, late_host, synchronises, loading, unexplained, between_kernels, exposed_copies,
    recomputes, unfused,
)  # fmt: skip


def explain(timeline: Timeline) -> Diagnosis:
    """Where the time went and what to try. Source of each number: the measure of the same name."""
    facts = facts_of(timeline)
    found = [finding for rule in RULES for finding in rule(facts) if finding.share > LEAST_SHARE]
    found.sort(key=lambda finding: -finding.lost_ns)
    return Diagnosis(headline=_headline(facts), findings=tuple(found[:MOST_FINDINGS]), notes=_notes(facts))


def _headline(facts: Facts) -> str:
    if not facts.ranks:
        return "nothing ran on a device or in an operator, so there is nothing to explain"
    parts = []
    for each in facts.ranks:
        compute = 100 * length(each.seen.compute) / each.window_ns
        exposed = 100 * length(each.seen.exposed_communication) / each.window_ns
        idle = 100 * length(each.seen.idle) / each.window_ns
        name = f"rank {each.rank}" if each.rank >= 0 else "rank unknown"
        parts.append(
            f"{name}: {each.window_ns / 1e6:.1f} ms, compute {compute:.0f} %, exposed communication {exposed:.0f} %, "
            f"idle {idle:.0f} %"
        )
    shown = "; ".join(parts[:4])
    return shown + (f"; and {len(parts) - 4} ranks more" if len(parts) > 4 else "")


def _notes(facts: Facts) -> tuple[str, ...]:
    notes = list(facts.matching.notes)
    if len(facts.timeline.ranks) < 2:
        notes.append("one rank alone: waiting for other ranks cannot be told from transfer")
    if facts.timeline.cpu_only and facts.ranks:
        notes.append("CPU-only: threads of the host were measured, and idle time has no cause in the file")
    if not has_lines(facts.timeline) and facts.ranks:
        notes.append("no source lines in the file: profile with with_stack=True to have findings name them")
    return tuple(notes)
