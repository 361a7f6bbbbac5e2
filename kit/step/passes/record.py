"""What the passes of a step did: a row for each graph on the way, and the variants that were timed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """The graph after one pass.

    `bytes_sent`: what each rank puts into collectives in one step. `peak_bytes` and `exposed_seconds` are predicted,
    `seconds` is measured on the slowest rank, None where it was not. `failure`: why the pass was undone, or "".
    """

    name: str
    nodes: int
    collectives: int
    bytes_sent: int
    peak_bytes: int
    exposed_seconds: float
    seconds: float | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    """A step from its trace to the graph that runs, one row a pass.

    `hardware`: what exposed time was predicted for. `executor`: what measured graphs were run with.
    """

    rows: tuple[StageRow, ...]
    hardware: str
    executor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One variant of a step's passes: what it is, and the median seconds of a step on the slowest rank.

    `same_as`: the variant whose graph it shares, so that it was not timed again; "" when it was timed.
    """

    name: str
    passes: tuple[str, ...]
    bucket_mb: float | None
    nodes: int
    collectives: int
    peak_bytes: int
    seconds: float
    same_as: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """The variants that `passes="measure"` timed, and the one that was kept: the fastest on the slowest rank."""

    rows: tuple[Trial, ...]
    kept: str
    executor: str

    def __repr__(self) -> str:
        best = next(row for row in self.rows if row.name == self.kept)
        return f"Trials({len(self.rows)} variants, kept {self.kept!r}: {best.seconds * 1e3:.4g} ms a step)"
