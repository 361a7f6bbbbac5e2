"""A compiled step as the notebook holds it: a handle to the steps that live on the ranks."""

from typing import Any

from kit.graph.record import Graph
from kit.ranks import Remote
from kit.step.compiled import CompiledStep
from kit.step.record import Plan


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

    @property
    def graph(self) -> Graph:
        """The graph that runs, after all passes; rank 0's, all ranks have the same."""
        return self.remote.group.run(_graph, self.remote)[0]  # type: ignore[no-any-return]

    def full_state_dict(self) -> dict[str, Any]:
        """The trained parameters and rank 0's buffers, whole, as the plain model names them.

        The model given to `compile_step` was copied to the ranks: `model.load_state_dict(step.full_state_dict())`
        brings back what they learned.
        """
        return self.remote.group.run(_state, self.remote)[0]  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"StepOnRanks({self._plan!r})"


def _plan(step: CompiledStep) -> Plan:
    return step.plan


def _graph(step: CompiledStep) -> Graph | None:
    import torch.distributed as dist

    return step.graph if dist.get_rank() == 0 else None


def _state(step: CompiledStep) -> dict[str, Any] | None:
    import torch.distributed as dist

    state = step.full_state_dict()
    return {name: value.cpu() for name, value in state.items()} if dist.get_rank() == 0 else None


def _call(step: CompiledStep, windows: list[Any]) -> float:
    import torch.distributed as dist

    mine = windows[dist.get_rank()]
    return float(step(*mine) if isinstance(mine, list) else step(mine))
