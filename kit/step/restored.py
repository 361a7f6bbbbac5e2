"""Load a saved step on any number of ranks, under any strategy.

Values are copied into the tensors that the graph updates, never put in their place: a captured CUDA
graph keeps their memory. All that can be wrong with a folder is looked for before the first value changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as read_into

from kit.step.eager_state import eager_targets, take_eager
from kit.step.folder import SavedStepError, require_files, together, whole_folder
from kit.step.mismatch import first_mismatch
from kit.step.packed_state import is_packed, keep_own, packed_of, room_for
from kit.step.saved import Stateful, Trained, causes_of, require_no_interrupt, require_stateful
from kit.step.state import shown_state, start_again

PARTS = ("model", "optimizer", "random")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Source:
    """A folder, what its metadata lists, and which saved rank's own values this rank takes."""

    folder: Path
    saved: dict[str, Any]
    rank: int
    same_ranks: bool
    steps: int


def load(trained: Trained, path: str | Path, also: dict[str, Stateful], parts: Sequence[str]) -> None:
    """Copy what `save` or a plain script wrote into a step; see `CompiledStep.load`. A collective call."""
    group = trained.group
    require_stateful(also)
    _require_parts(parts)
    folder = whole_folder(path, group)
    saved = _listed(folder, group)
    header = _read(folder, saved, "kit.", group)
    settings = _read(folder, saved, "optimizer.param_groups.", group) if "optimizer" in parts else {}
    rank, ranks = dist.get_rank(group), int(header.get("kit.ranks", 1))
    source = _Source(
        folder=folder,
        saved=saved,
        rank=rank % ranks,
        same_ranks=ranks == dist.get_world_size(group),
        steps=int(header.get("kit.steps", 0)),
    )
    mismatch = first_mismatch(trained, saved, parts=parts, header=header, settings=settings)
    mismatch = mismatch or _absent_objects(source, also)
    together(f"{folder}: {mismatch}" if mismatch else "", group)
    trained.life.unusable = f"loading {folder} failed midway: parameters are of no one step; load again before training"
    read = _copy(trained, source, parts, also, group)
    if "optimizer" in parts:
        _take_settings(trained.optimizer, settings)
        trained.life.done = source.steps
    for name, thing in also.items():
        thing.load_state_dict(read[_object_key(source, name)][0])
    trained.life.spoiled, trained.life.unusable = False, ""


def _listed(folder: Path, group: dist.ProcessGroup) -> dict[str, Any]:
    """What the metadata lists; the files that it names are there in full."""
    metadata = FileSystemReader(folder).read_metadata()
    ends: dict[str, int] = {}
    for place in (metadata.storage_data or {}).values():
        ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
    require_files(folder, ends, group)
    return dict(metadata.state_dict_metadata)


def _read(folder: Path, saved: dict[str, Any], prefix: str, group: dist.ProcessGroup) -> dict[str, Any]:
    """Small entries by key."""
    wanted: dict[str, Any] = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype) if isinstance(entry, TensorStorageMetadata) else None
        for key, entry in saved.items()
        if key.startswith(prefix)
    }
    return _filled(folder, wanted, group) if wanted else {}


def _filled(folder: Path, wanted: dict[str, Any], group: dist.ProcessGroup) -> dict[str, Any]:
    try:
        read_into(wanted, storage_reader=FileSystemReader(folder), process_group=group)
    except CheckpointException as error:
        require_no_interrupt(error)
        raise SavedStepError(f"{folder} could not be read ({causes_of(error)}); load another saved step") from error
    return wanted


def _copy(
    trained: Trained, source: _Source, parts: Sequence[str], also: dict[str, Stateful], group: dist.ProcessGroup
) -> dict[str, Any]:
    """Fill the step's tensors; returns all that was read, by key."""
    wanted: dict[str, Any] = {_object_key(source, name): None for name in also}
    if "model" in parts:
        wanted |= _model_targets(trained, source)
    if "optimizer" in parts:
        wanted |= _optimizer_targets(trained, source)
    random: dict[str, str] = {}
    if "random" in parts and source.same_ranks:
        for kind, state in trained.random_state().items():
            key = f"ranks.{source.rank}.random.{kind}"
            if key in source.saved:
                random[kind], wanted[key] = key, state
    read = _filled(source.folder, wanted, group)
    if "optimizer" in parts and trained.is_eager:
        for row in trained.rows:
            slot = trained.inputs.slots[row]
            keys = eager_targets(slot, source.saved)
            take_eager(trained.optimizer, slot, {key: read[f"optimizer.state.{slot.name}.{key}"] for key in keys})
    _keep_packed(trained, read)
    _set_numbers(trained, read)
    if "cpu" in random:
        torch.set_rng_state(read[random["cpu"]])
    if "cuda" in random:
        torch.cuda.set_rng_state(read[random["cuda"]], trained.inputs.held()[0].device)
    return read


def _model_targets(trained: Trained, source: _Source) -> dict[str, torch.Tensor]:
    """A buffer is the rank's own where it differed from rank 0's; of tied parameters one name is enough."""
    targets: dict[str, torch.Tensor] = {}
    packed = packed_of(trained.inputs.slots)
    for name, tensor in trained.tensors.items():
        own = f"ranks.{source.rank}.buffers.{name}"
        key = own if name in trained.buffers and own in source.saved else f"model.{name}"
        if key in source.saved:
            slot = packed.get(id(tensor))
            targets[key] = tensor.detach() if slot is None else room_for(tensor, slot)
    return targets


def _optimizer_targets(trained: Trained, source: _Source) -> dict[str, Any]:
    """The state to read; what has none there, saved before its first step, starts again."""
    targets: dict[str, Any] = {}
    for row in trained.rows:
        slot = trained.inputs.slots[row]
        if trained.is_eager:
            room = eager_targets(slot, source.saved)
            targets |= {f"optimizer.state.{slot.name}.{key}": value for key, value in room.items()}
            continue
        start_again(trained.optimizer, slot)
        for name, tensor in shown_state(slot, trained.inputs.states[row]).items():
            entry = source.saved.get(f"optimizer.state.{slot.name}.{name}")
            if entry is not None:
                is_tensor = isinstance(entry, TensorStorageMetadata)
                into = room_for(tensor, slot) if is_packed(slot) else tensor
                targets[f"optimizer.state.{slot.name}.{name}"] = into if is_tensor else None
    return targets


def _keep_packed(trained: Trained, read: dict[str, Any]) -> None:
    """Packed parameters and their state were read whole."""
    packed = packed_of(trained.inputs.slots)
    for name, tensor in trained.tensors.items():
        if id(tensor) in packed and f"model.{name}" in read:
            keep_own(packed[id(tensor)], packed[id(tensor)].local, read[f"model.{name}"])
    for row in trained.rows:
        slot = trained.inputs.slots[row]
        for name, local in trained.inputs.states[row].items():
            value = read.get(f"optimizer.state.{slot.name}.{name}")
            if is_packed(slot) and isinstance(value, torch.Tensor):
                keep_own(slot, local, value)


def _set_numbers(trained: Trained, read: dict[str, Any]) -> None:
    """State that another script kept as Python numbers."""
    for row in trained.rows:
        for name, tensor in trained.inputs.states[row].items():
            value = read.get(f"optimizer.state.{trained.inputs.slots[row].name}.{name}")
            if isinstance(value, int | float):
                tensor.fill_(value)


def _take_settings(optimizer: torch.optim.Optimizer, settings: dict[str, Any]) -> None:
    for number, group in enumerate(optimizer.param_groups):
        start = f"optimizer.param_groups.{number}."
        for key, value in settings.items():
            if not key.startswith(start) or key == f"{start}params":
                continue
            name = key.removeprefix(start)
            if isinstance(group.get(name), torch.Tensor):
                group[name].fill_(float(value))
            else:
                group[name] = value.item() if isinstance(value, torch.Tensor) else value


def _object_key(source: _Source, name: str) -> str:
    return f"ranks.{source.rank}.also.{name}"


def _absent_objects(source: _Source, also: dict[str, Stateful]) -> str:
    absent = [name for name in also if _object_key(source, name) not in source.saved]
    if not absent:
        return ""
    start = _object_key(source, "")
    there = ", ".join(sorted(key.removeprefix(start) for key in source.saved if key.startswith(start))) or "none"
    return f"nothing was saved for {', '.join(f'{name}=' for name in absent)} (objects that are there: {there})"


def _require_parts(parts: Sequence[str]) -> None:
    if isinstance(parts, str) or not parts or any(part not in PARTS for part in parts):
        raise ValueError(f"parts is {parts!r}, expected one or more of {PARTS} in a tuple")
