"""Where every rank of a group is: the record that says why a call does not end.

A rank's own thread answers while its main thread is stuck (`lookout.py`), so this can be made at any moment.
`explain()` puts the rows into one sentence.
"""

from dataclasses import dataclass
from enum import StrEnum

from kit.ranks.errors import Frame
from kit.tables import Table


class State(StrEnum):
    """What a rank is doing.

    COLLECTIVE: it waits for other ranks. STORE: it waits for a key in the store, as `new_group` does. WAITING: its
    main thread uses no processor (sleep, a lock, a file). SILENT: alive, but it gave no answer.
    FINISHED and FAILED: it has answered the call that other ranks are still at.
    """

    IDLE = "idle"
    RUNNING = "running"
    WAITING = "waiting"
    COLLECTIVE = "in collective"
    STORE = "in the store"
    JOINING = "joining"
    FINISHED = "finished"
    FAILED = "failed"
    SILENT = "no answer"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """What a rank waits in: `number` in its group as torch counts, from 1 in each epoch (joining is number 1).

    `number` 0 and `tensors` "": unknown. `group` "": the one of all ranks. `begun` False: the ranks still compare what
    they are about to do. `seconds` since it was reached.
    """

    kind: str
    number: int = 0
    tensors: str = ""
    group: str = ""
    seconds: float = 0.0
    begun: bool = True

    def __str__(self) -> str:
        numbered = f"{self.kind} number {self.number}" if self.number else self.kind
        return ", ".join(part for part in (numbered, self.tensors, self.group and f"group {self.group}") if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStack:
    """One rank. `frames`: the user's own lines, outermost first.

    `seconds` since its command began (or it became idle), `line_seconds` since it was first seen at its line (looked
    at once a second). `collective`: the one it waits in; `last`: the one of the group of all ranks that it has begun
    last, as far as it is recorded. `why`: how it failed or died. `bytes_gpu`: allocated by torch.
    """

    rank: int
    pid: int
    state: State
    seconds: float = 0.0
    line_seconds: float = 0.0
    frames: tuple[Frame, ...] = ()
    collective: Collective | None = None
    last: Collective | None = None
    why: str = ""
    bytes_resident: int = 0
    bytes_gpu: int = 0

    @property
    def line(self) -> Frame | None:
        """The user's own line it is at."""
        return self.frames[-1] if self.frames else None

    @property
    def place(self) -> str:
        """The line in a few words, as in "cell 5 line 4"; "" when unknown."""
        return "" if self.line is None else self.line.place


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Stacks:
    """All ranks of a group. `call`: what is under way and its `number` in the group, "" and 0 when nothing is.

    `before`: where the ranks were when the last call was stopped; only while nothing is under way.
    """

    group: str
    rows: tuple[RankStack, ...]
    call: str = ""
    number: int = 0
    before: "Stacks | None" = None

    def explain(self) -> str:
        """One sentence on who waits for what and who is missing."""
        from kit.ranks.explain import explain

        return explain(self)

    @property
    def table(self) -> Table:
        """One row for each rank; when all are idle, where they were at the last stop."""
        resting = all(row.state in (State.IDLE, State.JOINING) for row in self.rows)
        shown = self.before if self.before is not None and resting else self
        return Table(
            head=("rank", "state", "seconds", "at", "in the line", "collective"),
            rows=tuple(_cells(row) for row in shown.rows),
            notes=(self.explain(),),
            left=(1, 3, 5),
        )

    def __repr__(self) -> str:
        return f"Stacks({self.explain()})"

    def __str__(self) -> str:
        return str(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def _cells(row: RankStack) -> tuple[str, ...]:
    """A row as text."""
    code = f"{row.place}: {row.line.code}" if row.line is not None and row.line.code else row.place
    return (
        str(row.rank),
        f"{row.state} ({row.why})" if row.why else str(row.state),
        f"{row.seconds:.1f}" if row.seconds else "",
        code,
        f"{row.line_seconds:.1f}" if row.line_seconds else "",
        str(row.collective or ""),
    )
