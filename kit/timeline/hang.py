"""Say from the logs of a hung job where its ranks stopped agreeing, in one sentence a finding.

The rule (facts of this room, as torchrun's own torchfrtrace has it): at the lowest number of a group at which ranks
differ, a rank that is absent is missing, another name, size or type is a mismatch. Numbers absent on all ranks were
taken by captured collectives (a CUDA graph leaves no entries) and mean nothing. No line here uses a completion time:
gloo has none and NCCL's are a watchdog's.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from pathlib import Path

import numpy as np

from kit.timeline.collective_log import CollectiveLog
from kit.timeline.logs import read_log
from kit.timeline.record import UNKNOWN_RANK

GAP_NS = 100_000_000
JUMP = 64  # times more elements than the same collective had before
# Kinds whose sizes must be equal on all ranks; others may send other sizes from each.
_SAME_SIZE = frozenset({
    "all_reduce", "allreduce", "broadcast", "reduce", "_all_gather_base", "_allgather_base", "_reduce_scatter_base",
    "all_gather_into_tensor", "reduce_scatter_tensor", "allreduce_coalesced", "all_reduce_barrier",
})  # fmt: skip


class FindingKind(StrEnum):
    """What a finding is about."""

    LAST_MATCH = "last match"
    MISSING = "missing rank"
    MISMATCH = "mismatch"
    SILENT = "silent rank"
    PENDING = "pending"
    SAID = "said by a rank"
    GAP = "gap"
    JUMP = "size jump"


@dataclass(frozen=True, slots=True, kw_only=True)
class HangFinding:
    """One sentence with what it is about; `sequence` is -1 and `group` "" where they do not apply."""

    kind: FindingKind
    sentence: str
    ranks: tuple[int, ...] = ()
    sequence: int = -1
    group: str = ""

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Findings, the decisive ones first; `notes` say what could not be known."""

    findings: tuple[HangFinding, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        kinds = ", ".join(dict.fromkeys(finding.kind.value for finding in self.findings)) or "nothing found"
        return f"Hang({len(self.findings)} findings: {kinds})"

    def __str__(self) -> str:
        lines = [finding.sentence for finding in self.findings] or ["The logs show nothing wrong."]
        return "\n".join([*lines, *(f"- {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        lines = [finding.sentence for finding in self.findings] or ["The logs show nothing wrong."]
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        return f"<ol>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ol>" + (notes and f"<ul>{notes}</ul>")


def explain_hang(log: CollectiveLog | str | Path | Iterable[str | Path]) -> Hang:
    """What the logs of a hung or failed job say: a `CollectiveLog`, or paths as `kit.read_log` takes them.

    In this order: who never entered a collective or entered another one, ranks that left no log, what ranks complained
    of, collectives not completed, the last collective on which all agree, gaps over 100 ms between two collectives of
    a rank, and jumps in size.
    """
    if not isinstance(log, CollectiveLog):
        log = read_log(log)
    broken: list[HangFinding] = []
    agreed: list[HangFinding] = []
    pending: list[HangFinding] = []
    for group in range(len(log.groups)):
        rows = _rows_of(log, group)
        last, wrong = _compare(log, group, rows)
        agreed += last
        broken += wrong
        if not wrong:
            pending += _pending(log, group)
    findings = [*broken, *_silent(log), *_said(log), *pending, *agreed, *_gaps(log), *_jumps(log)]
    return Hang(findings=tuple(findings), notes=log.notes)


def _rows_of(log: CollectiveLog, group: int) -> dict[int, dict[int, int]]:
    """Sequence number -> rank -> row, of the collectives of a group."""
    rows: dict[int, dict[int, int]] = defaultdict(dict)
    for row in np.flatnonzero((log.group == group) & (log.is_p2p == 0)).tolist():
        rows[int(log.sequence[row])].setdefault(int(log.rank[row]), row)
    return rows


def _compare(
    log: CollectiveLog, group: int, rows: dict[int, dict[int, int]]
) -> tuple[list[HangFinding], list[HangFinding]]:
    """The last collective on which all ranks with a log agree, and what is wrong at the first where they do not."""
    here = sorted({rank for at in rows.values() for rank in at} | _members_with_log(log, group))
    if len(here) < 2:
        return [], []
    firsts = [min((number for number, at in rows.items() if rank in at), default=0) for rank in here]
    last: int | None = None
    wrong: list[HangFinding] = []
    for number in sorted(number for number in rows if number >= max(firsts)):  # older ones fell out of a ring buffer
        at = rows[number]
        wrong = [*_mismatch(log, group, number, at), *_missing(log, group, number, at, here)]
        if wrong:
            break
        last = number
    if last is None:
        return [], wrong
    row = min(rows[last].values())
    sentence = f"The last collective on which ranks {_listed(here)} agree is {_what(log, row, group, last)}."
    return [_finding(FindingKind.LAST_MATCH, sentence, here, last, log, group)], wrong


def _members_with_log(log: CollectiveLog, group: int) -> set[int]:
    """Ranks with a file that belong to the group though they entered nothing of it."""
    known = set(log.groups[group].ranks)
    if not known and len(log.groups) == 1:
        return set(log.ranks) - {UNKNOWN_RANK}
    return known & set(log.ranks)


def _missing(log: CollectiveLog, group: int, number: int, at: dict[int, int], here: list[int]) -> Iterator[HangFinding]:
    absent = [rank for rank in here if rank not in at]
    if absent:
        row = min(at.values())
        waiting = _listed(sorted(at))
        verb = "waits" if len(at) == 1 else "wait"
        sentence = (
            f"Rank {_listed(absent)} never entered {_what(log, row, group, number)}; rank {waiting} {verb} there."
        )
        yield _finding(FindingKind.MISSING, sentence, absent, number, log, group)


def _mismatch(log: CollectiveLog, group: int, number: int, at: dict[int, int]) -> Iterator[HangFinding]:
    said: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank, row in sorted(at.items()):
        name = log.text("name", row)
        sizes = log.text("sizes_in", row) if name in _SAME_SIZE else ""
        said[name, sizes, log.text("dtypes", row)].append(rank)
    if len(said) > 1:
        differ = [what for what, values in zip(("kind", "size", "type"), zip(*said, strict=True), strict=True)
                  if len(set(values)) > 1]  # fmt: skip
        runs = ", ".join(f"rank {_listed(ranks)} runs {_call(log, at[ranks[0]])}" for ranks in said.values())
        sentence = f"At collective {number}{_of_group(log, group)} the ranks differ in {' and '.join(differ)}: {runs}."
        yield _finding(FindingKind.MISMATCH, sentence, sorted(at), number, log, group)


def _silent(log: CollectiveLog) -> Iterator[HangFinding]:
    members = {rank for group in log.groups for rank in group.ranks}
    absent = sorted(members - set(log.ranks))
    if absent and UNKNOWN_RANK not in log.ranks:
        sentence = (
            f"Rank {_listed(absent)} left no log: it ended, hangs outside a collective, or its file is not among "
            f"the {len(log.parts)} given."
        )
        yield HangFinding(kind=FindingKind.SILENT, sentence=sentence, ranks=tuple(absent))
    for part in log.parts:
        if not np.any(log.rank == part.rank) and len(log):
            sentence = f"Rank {part.rank} left a log ({Path(part.source).name}) without any collective."
            yield HangFinding(kind=FindingKind.SILENT, sentence=sentence, ranks=(part.rank,))


def _said(log: CollectiveLog) -> Iterator[HangFinding]:
    for message in log.messages:
        who = "A rank" if message.rank == UNKNOWN_RANK else f"Rank {message.rank}"
        yield HangFinding(
            kind=FindingKind.SAID,
            sentence=f"{who} said: {message.text}.",
            ranks=message.ranks or (message.rank,),
            sequence=message.sequence,
        )


def _pending(log: CollectiveLog, group: int) -> Iterator[HangFinding]:
    """What a rank had enqueued but not completed when it was dumped; all ranks agree, so none is at fault alone."""
    name = log.groups[group].name
    for part in log.parts:
        for status in part.status:
            if status.group == name and -1 < status.last_completed < status.last_enqueued:
                count = status.last_enqueued - status.last_completed
                sentence = (
                    f"Rank {part.rank} had {count} collectives{_of_group(log, group)} enqueued and not completed when "
                    f"it was dumped: {status.last_completed + 1} to {status.last_enqueued}."
                )
                yield _finding(FindingKind.PENDING, sentence, [part.rank], status.last_completed + 1, log, group)


def _gaps(log: CollectiveLog) -> Iterator[HangFinding]:
    """The longest time without a new collective of each rank."""
    for rank in log.ranks:
        rows = np.flatnonzero((log.rank == rank) & (log.created_ns >= 0))
        if len(rows) < 2:
            continue
        rows = rows[np.argsort(log.created_ns[rows], kind="stable")]
        gaps = np.diff(log.created_ns[rows])
        longest = int(gaps.argmax())
        if gaps[longest] > GAP_NS:
            row = int(rows[longest + 1])
            more = int((gaps > GAP_NS).sum()) - 1
            others = f" ({more} more gaps over 100 ms)" if more else ""
            sentence = (
                f"Rank {rank} entered nothing for {gaps[longest] / 1e6:,.0f} ms before "
                f"{_what(log, row, int(log.group[row]), int(log.sequence[row]))}{others}."
            )
            yield _finding(FindingKind.GAP, sentence, [rank], int(log.sequence[row]), log, int(log.group[row]))


def _jumps(log: CollectiveLog) -> Iterator[HangFinding]:
    """The largest jump in size of each rank, between two collectives of one kind and group."""
    for rank in log.ranks:
        before: dict[tuple[int, int], int] = {}
        worst: tuple[float, int, int] | None = None
        for row in np.flatnonzero((log.rank == rank) & (log.elements_in > 0)).tolist():
            key = (int(log.group[row]), int(log.name[row]))
            elements = int(log.elements_in[row])
            ratio = elements / before.get(key, elements)
            if ratio >= JUMP and (worst is None or ratio > worst[0]):
                worst = ratio, row, before[key]
            before[key] = elements
        if worst is not None:
            _, row, previous = worst
            sentence = (
                f"On rank {rank} {log.text('name', row)} jumps from {previous:,} to {int(log.elements_in[row]):,} "
                f"elements at collective {int(log.sequence[row])}."
            )
            yield _finding(FindingKind.JUMP, sentence, [rank], int(log.sequence[row]), log, int(log.group[row]))


def _finding(
    kind: FindingKind, sentence: str, ranks: Sequence[int], sequence: int, log: CollectiveLog, group: int
) -> HangFinding:
    return HangFinding(
        kind=kind, sentence=sentence, ranks=tuple(ranks), sequence=sequence, group=log.groups[group].name
    )


def _what(log: CollectiveLog, row: int, group: int, number: int) -> str:
    return f"collective {number}{_of_group(log, group)}, {_call(log, row)}"


def _call(log: CollectiveLog, row: int) -> str:
    """ "all_reduce of [16] Float (train.py:9)" """
    sizes, dtypes, frame = (log.text(column, row) for column in ("sizes_in", "dtypes", "frame"))
    words = [log.text("name", row), f"of {sizes}" if sizes else "", dtypes, f"({frame})" if frame else ""]
    return " ".join(word for word in words if word)


def _of_group(log: CollectiveLog, group: int) -> str:
    seen = log.groups[group]
    name = seen.description or seen.name
    return f" of group {name}" if name and len(log.groups) > 1 else ""


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
