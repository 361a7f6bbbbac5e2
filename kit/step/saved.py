"""Save a step with all that training needs to go on.

The format is torch.distributed.checkpoint's, with the names that `get_state_dict` gives a plain model
and optimizer (`model.NAME`, `optimizer.state.NAME.KEY`, `optimizer.param_groups`), so a plain
script reads it and what a plain script saved is read here. Beside them: `kit` (steps done, ranks,
optimizer) and `ranks.R` (what only rank R has: random state, buffers that differ from rank 0's, objects
given by the user). Packed parameters are saved whole.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as write

from kit.step.eager_state import eager_entries
from kit.step.folder import SavedStepError, begin_writing, finish_writing, together
from kit.step.inputs import Inputs
from kit.step.life import Life
from kit.step.mesh import Axes
from kit.step.packed_state import gathered, is_packed, packed_of
from kit.step.state import shown_state

FORMAT = 1


class Stateful(Protocol):
    """What can be saved beside a step: a learning-rate scheduler, a data loader that knows its place."""

    def state_dict(self) -> dict[str, Any]:
        """What to save."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> object:
        """Take what was saved."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """What a step trains, as saving and loading need to know it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    inputs: Inputs
    axes: Axes
    life: Life

    @property
    def group(self) -> dist.ProcessGroup:
        """The ranks that save together: all that the step runs on."""
        axes = list(self.axes)
        if len(axes) == 1:
            return axes[0].mesh.get_group()
        ranks, world = self.axes.ranks, dist.group.WORLD
        if world is None or ranks != dist.get_world_size():
            raise SavedStepError(
                f"the step runs on {ranks} of {dist.get_world_size()} ranks over {len(axes)} axes; expected all ranks, "
                "or one axis"
            )
        return world

    @property
    def rows(self) -> list[int]:
        """Slots that an optimizer group updates."""
        return sorted(row for group in self.inputs.groups for row in group.slot_rows)

    @property
    def is_eager(self) -> bool:
        """Whether the optimizer takes its own step after the graph and keeps its own state."""
        return bool(self.inputs.eager_reason)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and persistent buffers by the names of `state_dict`, tied ones under each name."""
        entries = self.model.state_dict(keep_vars=True)
        return {name: value for name, value in entries.items() if isinstance(value, torch.Tensor)}

    @property
    def buffers(self) -> set[str]:
        """Names of all buffers, an alias too."""
        return {name for name, _ in self.model.named_buffers(remove_duplicate=False)}

    def random_state(self) -> dict[str, torch.Tensor]:
        """State of the generators that a step draws from on this rank, by device type."""
        device = self.inputs.held()[0].device
        state = {"cpu": torch.get_rng_state()}
        return state | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def save(trained: Trained, path: str | Path, also: dict[str, Stateful]) -> Path:
    """Write a step to the folder `path`; what was saved there before stays until this is whole. Collective."""
    group = trained.group
    require_stateful(also)
    rank = dist.get_rank(group)
    entries: dict[str, Any] = {
        "ranks": {str(rank): _of_rank(trained, also, group)},
        "model": _model_entries(trained, rank),
        "optimizer": _optimizer_entries(trained),
    }
    if rank == 0:
        entries["kit"] = {
            "format": FORMAT,
            "steps": trained.life.done,
            "ranks": dist.get_world_size(group),
            "optimizer": type(trained.optimizer).__name__,
        }
    fresh = begin_writing(path, group)
    problem = ""
    try:
        write(entries, storage_writer=FileSystemWriter(fresh), process_group=group)
    except CheckpointException as error:
        require_no_interrupt(error)
        problem = f"{fresh} could not be written ({causes_of(error)}); what was saved before is as it was"
    together(problem, group)
    return finish_writing(path, group)


def require_no_interrupt(error: CheckpointException) -> None:
    """Raise `KeyboardInterrupt` again when that is what stopped torch: it would hide it."""
    if any(isinstance(cause[0], KeyboardInterrupt) for cause in error.failures.values()):
        raise KeyboardInterrupt from error


def causes_of(error: CheckpointException) -> str:
    """What went wrong on which rank."""
    return "; ".join(f"rank {rank}: {cause[0]!r}" for rank, cause in sorted(error.failures.items()))


def require_stateful(also: dict[str, Stateful]) -> None:
    """Raise `TypeError` for an object that cannot be saved beside a step."""
    for name, thing in also.items():
        if not callable(getattr(thing, "state_dict", None)) or not callable(getattr(thing, "load_state_dict", None)):
            raise TypeError(
                f"{name}= got {type(thing).__name__}; expected an object with state_dict and load_state_dict, such as "
                "a learning-rate scheduler"
            )


def _model_entries(trained: Trained, rank: int) -> dict[str, torch.Tensor]:
    """Of buffers rank 0's alone: of several writers of one name DCP would take any."""
    packed = packed_of(trained.inputs.slots)
    mine = {name: t for name, t in trained.tensors.items() if rank == 0 or name not in trained.buffers}
    return {name: gathered(t) if id(t) in packed else t.detach() for name, t in mine.items()}


def _optimizer_entries(trained: Trained) -> dict[str, Any]:
    inputs = trained.inputs
    names = {id(p): name for name, p in trained.model.named_parameters()}
    state = {inputs.slots[row].name: _state_entries(trained, row) for row in trained.rows}
    groups = [group | {"params": [names[id(p)] for p in group["params"]]} for group in trained.optimizer.param_groups]
    return {"state": {name: tensors for name, tensors in state.items() if tensors}, "param_groups": groups}


def _state_entries(trained: Trained, row: int) -> dict[str, Any]:
    slot = trained.inputs.slots[row]
    if trained.is_eager:
        return eager_entries(trained.optimizer, slot)
    state = shown_state(slot, trained.inputs.states[row])
    return {key: gathered(value) for key, value in state.items()} if is_packed(slot) else dict(state)


def _of_rank(trained: Trained, also: dict[str, Stateful], group: dist.ProcessGroup) -> dict[str, Any]:
    """What this rank alone has. State of the user's objects is one value: of a dict DCP would turn keys to text."""
    differing = {}
    for name in sorted(trained.buffers & set(trained.tensors)):
        mine = trained.model.get_buffer(name).detach()
        first = mine.clone(memory_format=torch.contiguous_format)
        dist.broadcast(first, group=group, group_src=0)
        if not torch.equal(first, mine):
            differing[name] = mine
    objects = {name: (thing.state_dict(),) for name, thing in also.items()}
    return {"random": trained.random_state(), "buffers": differing, "also": objects}
