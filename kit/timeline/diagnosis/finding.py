"""What a diagnosis says: findings, each with its seconds, evidence, place and advice."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One reason why time was lost.

    `lost_ns` is what it cost the rank that lost most by it, `share` that of this rank's window (0 to 1). `where` is a
    source line, module or operator as far as the file tells, "" when it does not.
    """

    kind: str
    title: str
    rank: int
    lost_ns: int
    share: float
    evidence: tuple[str, ...]
    where: str
    advice: tuple[str, ...]

    @property
    def seconds_lost(self) -> float:
        """`lost_ns` in seconds."""
        return self.lost_ns / 1e9

    @property
    def whose(self) -> str:
        """`rank 3's`, or `the` when the file does not say its rank."""
        return f"rank {self.rank}'s" if self.rank >= 0 else "the"

    def __str__(self) -> str:
        lines = [f"{self.title} ({self.lost_ns / 1e6:.1f} ms, {100 * self.share:.1f} % of {self.whose} window)"]
        lines += [f"   {text}" for text in self.evidence]
        lines += [f"   where: {self.where}"] if self.where else []
        return "\n".join([*lines, *(f"   try: {text}" for text in self.advice)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """At most five findings, the most seconds lost first; `headline` says how the window splits, `notes` the limits."""

    headline: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __getitem__(self, index: int) -> Finding:
        return self.findings[index]

    def __repr__(self) -> str:
        first = f", first: {self.findings[0].title}" if self.findings else ""
        return f"Diagnosis({len(self.findings)} findings{first})"

    def __str__(self) -> str:
        found = [f"{number}. {finding}" for number, finding in enumerate(self.findings, 1)]
        none = [] if found else ["nothing costs more than 1 % of a window"]
        return "\n".join([self.headline, *found, *none, *(f"- {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        items = "".join(_item(finding) for finding in self.findings)
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        found = f"<ol>{items}</ol>" if items else "<p>nothing costs more than 1 % of a window</p>"
        return f"<p>{escape(self.headline)}</p>{found}" + (f"<ul>{notes}</ul>" if notes else "")


def _item(finding: Finding) -> str:
    lost = f"{finding.lost_ns / 1e6:.1f} ms, {100 * finding.share:.1f} % of {finding.whose} window"
    place = f"<br>where: <code>{escape(finding.where)}</code>" if finding.where else ""
    advice = "".join(f"<br>try: {escape(text)}" for text in finding.advice)
    evidence = "".join(f"<br>{escape(text)}" for text in finding.evidence)
    return f"<li><b>{escape(finding.title)}</b> ({lost}){evidence}{place}{advice}</li>"
