"""Records of two comparisons: ways to run a training step, and forms that a model has as a graph."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One way to run a step, measured. None where there is no figure; `why` says why, "" when all are there.

    `build_seconds`: from a fresh model to something that can be called. `first_seconds`: the first step, which
    compiles what is compiled lazily. `steady_seconds`: median of later ones. Each is the slowest rank's.
    `peak_bytes`: of the fullest rank. `loss`: over all ranks at the last step.
    """

    mode: str
    build_seconds: float | None = None
    first_seconds: float | None = None
    steady_seconds: float | None = None
    peak_bytes: int | None = None
    loss: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """What `kit.startup` measured. `peak_method`: what the peak is a peak of."""

    strategy: str
    world_size: int
    device: str
    steps: int
    peak_method: str
    starts: tuple[Start, ...]

    def __repr__(self) -> str:
        measured = sum(start.steady_seconds is not None for start in self.starts)
        return (
            f"StartUp({self.strategy} on {self.world_size} ranks, {self.device}: {measured} of {len(self.starts)} "
            f"ways measured, {self.steps} steps each)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A model in one representation. None where there is no figure; `why` says why.

    `holds`: what of a training step is in it. `operators`: nodes that are no inputs, constants or bookkeeping.
    `bytes_made`: of all values that its nodes make in one run, views counted too.
    """

    name: str
    holds: str
    nodes: int | None = None
    operators: int | None = None
    bytes_made: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Representations:
    """What `kit.representations` counted."""

    model: str
    forms: tuple[Form, ...]

    def __repr__(self) -> str:
        counted = ", ".join(f"{form.name} {form.nodes}" for form in self.forms if form.nodes is not None)
        return f"Representations({self.model}, nodes: {counted})"
