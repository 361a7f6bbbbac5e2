"""The Verdict record: whether a model trains as one static graph, what was counted, and why not.

Counted in one real run, not read off the model: zero graph breaks do not mean one graph.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBreak:
    """A place where a graph had to end: the user's line (`file:line: code`) and why."""

    source: str
    reason: str

    def __str__(self) -> str:
        return f"{self.source or 'unknown line'} ({self.reason})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What ran in one forward and backward of a model (or one step) on this rank.

    `kind`: what it is, in words. `forward_graphs`, `backward_graphs`: compiled graphs that ran, one that ran
    twice counts twice; a whole-step graph counts as a forward. `breaks`: where Dynamo had to end a graph.
    Operators are those that compute or send, views left out; collectives are among them. `reasons`: why it is or
    is not one static graph, a sentence each, the weightiest first.
    """

    kind: str
    is_static: bool
    forward_graphs: int
    backward_graphs: int
    breaks: tuple[GraphBreak, ...]
    operators_inside: int
    operators_outside: int
    collectives_inside: int
    collectives_outside: int
    reasons: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Verdict({self.sentence})"

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        answer = "is one static graph" if self.is_static else "is not one static graph"
        return f"{self.kind} {answer}: {self.reasons[0]}"

    def _repr_html_(self) -> str:
        from kit.step.verdict_table import verdict_table

        return verdict_table(self)._repr_html_()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One strategy compiled in one way; `verdict` is None where it does not apply, `note` says why."""

    strategy: str
    way: str
    verdict: Verdict | None
    note: str = ""

    def __str__(self) -> str:
        seen = self.verdict
        if seen is None:
            return self.note
        if not seen.forward_graphs:
            return f"no graph; {seen.collectives_outside} collectives"
        return (
            f"{seen.forward_graphs}+{seen.backward_graphs} graphs, {len(seen.breaks)} breaks; collectives "
            f"{seen.collectives_inside} in, {seen.collectives_outside} out"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compatibility:
    """Strategies against ways to compile, each cell from a run on `world_size` ranks."""

    model: str
    world_size: int
    cells: tuple[Cell, ...]

    def __repr__(self) -> str:
        static = sum(cell.verdict is not None and cell.verdict.is_static for cell in self.cells)
        ran = sum(cell.verdict is not None for cell in self.cells)
        return f"Compatibility({self.model} on {self.world_size} ranks: {static} of {ran} ways are one static graph)"

    def __getitem__(self, key: tuple[str, str]) -> Cell:
        """The cell of a strategy and a way. Raises `KeyError` that lists the cells."""
        for cell in self.cells:
            if (cell.strategy, cell.way) == key:
                return cell
        raise KeyError(f"{key} is no cell; there are {', '.join(repr((c.strategy, c.way)) for c in self.cells)}")

    def _repr_html_(self) -> str:
        from kit.step.verdict_table import compatibility_table

        return compatibility_table(self)._repr_html_()
