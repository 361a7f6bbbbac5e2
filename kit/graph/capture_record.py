"""The Capture record: what became of a model when its graph was asked for.

Apart from `Graph` because one model can give several graphs, and the reasons why are as much a result
as the graphs.
"""

from dataclasses import dataclass

from kit.graph.record import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A place where a graph had to end: why, and the user's own line."""

    reason: str
    file: str
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.code} ({self.reason})"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Capture:
    """The graphs of one model for one batch, in the order they run, and the breaks between them."""

    model: str
    graphs: tuple[Graph, ...]
    breaks: tuple[Break, ...]

    def __repr__(self) -> str:
        nodes = sum(len(graph) for graph in self.graphs)
        return f"Capture({self.model!r}: {len(self.graphs)} graphs, {len(self.breaks)} breaks, {nodes} nodes)"

    @property
    def graph(self) -> Graph:
        """The only graph; raises `ValueError` naming the breaks when there is not exactly one."""
        if len(self.graphs) == 1:
            return self.graphs[0]
        where = "; ".join(str(found) for found in self.breaks) or "no break is known"
        raise ValueError(
            f"{self.model} gave {len(self.graphs)} graphs, expected one. Breaks: {where}. "
            "Use .graphs, or change the lines named"
        )
