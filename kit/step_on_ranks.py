"""A compiled step as the notebook holds it: a handle to the steps that live on the ranks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kit.graph.record import Graph
from kit.ranks import Remote
from kit.step.compiled import CompiledStep
from kit.step.hardware import Hardware
from kit.step.passes.record import PassReport, Trials
from kit.step.record import Plan
from kit.step.restored import PARTS


class StepOnRanks:
    """One compiled step on every rank of a group; made by `kit.compile_step` in a notebook."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self._plan: Plan = remote.group.run(_plan, remote)[0]

    def __call__(self, *windows: Any) -> float:
        """Run one step; `windows[r]` is rank r's batch (a list when it accumulates). Returns the loss."""
        group = self.remote.group
        if len(windows) != group.world_size:
            raise ValueError(
                f"got {len(windows)} batches, expected one for each of {group.world_size} ranks, in rank order"
            )
        return group.run(_call, self.remote, list(windows))[0]  # type: ignore[no-any-return]

    @property
    def plan(self) -> Plan:
        """What the step sends, in order."""
        return self._plan

    def plan_on(self, hardware: str | Hardware) -> Plan:
        """The plan with estimated times on `hardware`; `kit.plan_on` takes measured ones too."""
        return self.remote.group.run(_plan_on, self.remote, hardware)[0]  # type: ignore[no-any-return]

    @property
    def graph(self) -> Graph:
        """The graph that runs, after all passes; rank 0's, all ranks have the same."""
        return self.remote.group.run(_graph, self.remote)[0]  # type: ignore[no-any-return]

    @property
    def trials(self) -> Trials | None:
        """What `passes="measure"` timed; None when nothing was."""
        return self.remote.group.run(_trials, self.remote)[0]  # type: ignore[no-any-return]

    def pass_report(self, *windows: Any, hardware: str | Hardware = "h200") -> PassReport:
        """The graph after each pass, estimated on `hardware`; timed too when each rank's batch is given."""
        if windows and len(windows) != self.remote.group.world_size:
            raise ValueError(f"got {len(windows)} batches, expected none or {self.remote.group.world_size}, one a rank")
        return self.remote.group.run(_report, self.remote, list(windows), hardware)[0]  # type: ignore[no-any-return]

    def full_state_dict(self) -> dict[str, Any]:
        """The trained parameters and rank 0's buffers, whole, as the plain model names them.

        The model given to `compile_step` was copied to the ranks: `model.load_state_dict(step.full_state_dict())`
        brings back what they learned.
        """
        return self.remote.group.run(_state, self.remote)[0]  # type: ignore[no-any-return]

    def full_optimizer_state_dict(self) -> dict[str, Any]:
        """The optimizer's `state_dict()` with whole tensors, as the plain optimizer loads it."""
        return self.remote.group.run(_optimizer_state, self.remote)[0]  # type: ignore[no-any-return]

    def save(self, path: str | Path, **also: Remote) -> Path:
        """Save all that training needs in the folder `path`; see `CompiledStep.save`.

        `also` are references, such as `scheduler=ranks["scheduler"]`. A relative path is the ranks'.
        """
        return self.remote.group.run(_save, self.remote, path, list(also), *also.values())[0]  # type: ignore[no-any-return]

    def load(self, path: str | Path, *, parts: Sequence[str] = PARTS, **also: Remote) -> None:
        """Load what `save` wrote; see `CompiledStep.load`."""
        self.remote.group.run(_load, self.remote, path, tuple(parts), list(also), *also.values())

    def __repr__(self) -> str:
        return f"StepOnRanks({self._plan!r})"


def _plan(step: CompiledStep) -> Plan:
    return step.plan


def _plan_on(step: CompiledStep, hardware: str | Hardware) -> Plan:
    return step.plan_on(hardware)


def _graph(step: CompiledStep) -> Graph | None:
    import torch.distributed as dist

    return step.graph if dist.get_rank() == 0 else None


def _trials(step: CompiledStep) -> Trials | None:
    return step.trials


def _report(step: CompiledStep, windows: list[Any], hardware: str | Hardware) -> PassReport:
    import torch.distributed as dist

    mine = windows[dist.get_rank()] if windows else []
    return step.pass_report(*(mine if isinstance(mine, list) else [mine]), hardware=hardware)


def _state(step: CompiledStep) -> dict[str, Any] | None:
    import torch.distributed as dist

    state = step.full_state_dict()
    return {name: value.cpu() for name, value in state.items()} if dist.get_rank() == 0 else None


def _optimizer_state(step: CompiledStep) -> dict[str, Any] | None:
    import torch
    import torch.distributed as dist

    packed = step.full_optimizer_state_dict()
    if dist.get_rank() != 0:
        return None
    for state in packed["state"].values():
        state.update({name: value.cpu() for name, value in state.items() if isinstance(value, torch.Tensor)})
    return packed


def _save(step: CompiledStep, path: str | Path, names: list[str], *objects: Any) -> Path:
    return step.save(path, **dict(zip(names, objects, strict=True)))


def _load(step: CompiledStep, path: str | Path, parts: tuple[str, ...], names: list[str], *objects: Any) -> None:
    step.load(path, parts=parts, **dict(zip(names, objects, strict=True)))


def _call(step: CompiledStep, windows: list[Any]) -> float:
    import torch.distributed as dist

    mine = windows[dist.get_rank()]
    return float(step(*mine) if isinstance(mine, list) else step(mine))
