"""What goes wrong with ranks, as the person in the notebook should read it.

A failure on a rank arrives as plain data (`Failure`) because exceptions and tracebacks of another process
may not be picklable. The error raised from it puts the rank in front, shows the user's own frames and
folds what merely followed; the long form of the remote traceback stays in `__cause__`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kit.ranks.stacks import Stacks

MAX_RANKS_SHOWN = 4


_shown_as: Callable[[str], str] = str  # how a code file is named to the person


def show_files_as(name: Callable[[str], str]) -> None:
    """Name code files in errors by `name(file)` from now on; the magics name notebook cells by their number."""
    global _shown_as
    _shown_as = name


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One line of a traceback; `code` is the source line, "" when unknown."""

    file: str
    line: int
    function: str
    code: str

    def __str__(self) -> str:
        place = f"{_shown_as(self.file)}, line {self.line}"
        if self.function != "<module>":
            place += f", in {self.function}"
        return f"{place}: {self.code}" if self.code else place

    @property
    def place(self) -> str:
        """File and line in a few words, as in "cell 5 line 4"."""
        return f"{_shown_as(self.file).strip('<>').rpartition('/')[2]} line {self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a rank did not give a result.

    `type` and `message` of the exception, `frames` of the user's own code (outermost first), `text` the whole
    remote traceback. `died`: the process is gone. `folded`: it only followed another rank's failure (the
    group was aborted, or a peer was lost). `unanswered`: it ended only because it was told to stop.
    """

    rank: int
    type: str
    message: str
    frames: tuple[Frame, ...] = ()
    text: str = ""
    died: bool = False
    folded: bool = False
    unanswered: bool = False

    def __str__(self) -> str:
        if self.died:
            return self.message
        return f"{self.type}: {self.message}" if self.message else self.type

    @property
    def first_line(self) -> str:
        """The failure in one line."""
        return str(self).split("\n", 1)[0]


class RanksError(Exception):
    """Something is wrong with a group of ranks."""

    def _render_traceback_(self) -> list[str]:
        """Lines that IPython and papermill show instead of the traceback through the kit."""
        return f"{type(self).__name__}: {self}".split("\n")


class ClosedError(RanksError):
    """A group was used after it was closed."""


class DeadRankError(RanksError):
    """A call needs a rank that is dead."""


class RankNumberError(RanksError, ValueError):
    """A number that is no rank of the group."""


class CellSyntaxError(RanksError):
    """A cell that is no Python; it ran on no rank."""


class LaunchError(RanksError):
    """A group could not be started."""


class RemoteError(Exception):
    """The traceback of a rank, as text: the long form behind a `RankError`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"on the rank\n{self.text}"


class RankError(RanksError):
    """A call failed on one rank or more.

    `rank` is the one that failed first, `causes` the failures that stand for themselves (first one first),
    `consequences` those that only followed. `note` says what became of the group; `stacks` where the ranks were when
    the call was ended, None when it ended by itself.
    """

    def __init__(
        self,
        causes: Sequence[Failure],
        *,
        consequences: Sequence[Failure] = (),
        note: str = "",
        stacks: "Stacks | None" = None,
    ) -> None:
        self.causes = tuple(causes)
        self.consequences = tuple(consequences)
        self.note = note
        self.stacks = stacks
        super().__init__("\n".join(report(self.causes, self.consequences, note)))
        if self.causes[0].text:
            self.__cause__ = RemoteError(self.causes[0].text)

    @property
    def rank(self) -> int:
        """The rank that failed first."""
        return self.causes[0].rank

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Causes, then consequences."""
        return self.causes + self.consequences


class RankTimeoutError(RankError):
    """A call took longer than its time limit."""


class InterruptedRanksError(KeyboardInterrupt):
    """The person pressed stop: every rank was stopped and is idle again.

    A `KeyboardInterrupt`, so that code which expects one sees one; `failures` says where each rank was.
    """

    def __init__(self, failures: Sequence[Failure], *, note: str = "", stacks: "Stacks | None" = None) -> None:
        self.failures = tuple(failures)
        self.note = note
        self.stacks = stacks
        lines = ["interrupted"]
        by_rank = sorted(self.failures, key=lambda failure: failure.rank)
        lines += _shown([f"rank {f.rank}: stopped at {f.frames[-1]}" for f in by_rank if f.frames])
        super().__init__("\n".join([*lines, note] if note else lines))

    def _render_traceback_(self) -> list[str]:
        return f"KeyboardInterrupt: {self}".split("\n")


def report(causes: Sequence[Failure], consequences: Sequence[Failure], note: str) -> list[str]:
    """Lines of a `RankError`: causes with their frames, then consequences, at most four ranks in all."""
    lines: list[str] = []
    groups = _alike(causes)
    for failures in groups[:MAX_RANKS_SHOWN]:
        lines += _with_frames(failures)
    rest = sum(map(len, groups[MAX_RANKS_SHOWN:]))
    room = max(0, MAX_RANKS_SHOWN - len(groups))
    told = {f.rank for f in consequences[:room]}
    first = causes[0]
    because = f"rank {first.rank} died ({first.type})" if first.died else f"rank {first.rank} raised {first.type}"
    lines += [f"rank {f.rank}: {_consequence(f, because)}" for f in consequences if f.rank in told]
    rest += len(consequences) - len(told)
    if rest:
        lines.append(f"... and {rest} more rank{'s' if rest > 1 else ''}")
    if note:
        lines.append(note)
    return lines


def _alike(failures: Sequence[Failure]) -> list[list[Failure]]:
    """Failures that are alike are told once, for all their ranks.

    They have type, message and last frame in common; a message of several lines names its places itself.
    """
    found: dict[tuple[object, ...], list[Failure]] = {}
    for failure in failures:
        place = () if "\n" in failure.message else failure.frames[-1:]
        key: tuple[object, ...] = (failure.rank,) if failure.died else (failure.type, failure.message, *place)
        found.setdefault(key, []).append(failure)
    return list(found.values())


def _with_frames(failures: list[Failure]) -> list[str]:
    first = failures[0]
    head, *more = str(first).split("\n")
    if first.died:
        head = head.removeprefix(f"rank {first.rank} ")
    return [f"{_label(sorted(f.rank for f in failures))}: {head}", *more, *(f"    {frame}" for frame in first.frames)]


def _label(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:MAX_RANKS_SHOWN]))
    return f"ranks {shown}" + (f" and {len(ranks) - MAX_RANKS_SHOWN} more" if len(ranks) > MAX_RANKS_SHOWN else "")


def _consequence(failure: Failure, because: str) -> str:
    place = f" (it was at {failure.frames[-1]})" if failure.frames else ""
    return f"aborted because {because}{place}"


def _shown(lines: list[str]) -> list[str]:
    rest = len(lines) - MAX_RANKS_SHOWN
    return lines[:MAX_RANKS_SHOWN] + ([f"... and {rest} more rank{'s' if rest > 1 else ''}"] if rest > 0 else [])
