"""What keeps a saved step from being that of this model and this optimizer, in words.

Looked for in the metadata before any value is read. torch would name one key at a time, and only after
some values were changed.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from kit.step.saved import FORMAT, Trained
from kit.step.update import baked

_SHOWN = 4


def first_mismatch(
    trained: Trained,
    saved: dict[str, Any],
    *,
    parts: Sequence[str],
    header: dict[str, Any],
    settings: dict[str, Any],
) -> str:
    """Why `saved` (entries of the metadata by key) cannot be loaded, or "" when it can."""
    if header.get("kit.format", FORMAT) != FORMAT:
        return f"it has format {header['kit.format']}, this kit reads {FORMAT}; load it with the kit that saved it"
    problem = _of_model(trained, saved) if "model" in parts else ""
    if problem or "optimizer" not in parts:
        return problem
    return _of_optimizer(trained, saved, header) or _of_settings(trained, settings)


def _of_model(trained: Trained, saved: dict[str, Any]) -> str:
    there = {key.removeprefix("model."): entry for key, entry in saved.items() if key.startswith("model.")}
    if not there:
        return (
            f"it holds no model (entries: {_few(saved)}); expected entries model.NAME, as step.save and "
            'dcp.save({"model": model.state_dict()}) write them'
        )
    tensors = trained.tensors
    found = {id(tensor) for name, tensor in tensors.items() if name in there}
    missing = [name for name, tensor in tensors.items() if id(tensor) not in found]
    strange = [name for name, e in there.items() if name not in tensors and isinstance(e, TensorStorageMetadata)]
    shapes = [
        f"{name} is {_shape(there[name])} there and {list(tensor.shape)} here"
        for name, tensor in tensors.items()
        if name in there and _shape(there[name]) != list(tensor.shape)
    ]
    words = [f"it lacks {_few(missing)}"] if missing else []
    words += [f"it has {_few(strange)}, which this model has not"] if strange else []
    words += [_few(shapes)] if shapes else []
    return f"saved from another model: {'; '.join(words)}" if words else ""


def _of_optimizer(trained: Trained, saved: dict[str, Any], header: dict[str, Any]) -> str:
    mine, other = type(trained.optimizer).__name__, header.get("kit.optimizer")
    if other not in (None, mine):
        return (
            f'saved with {other}, this step has {mine}; build the step with {other}, or load parts=("model",) to start '
            "the optimizer anew"
        )
    if not any(key.startswith("optimizer.") for key in saved):
        return 'it holds no optimizer; load parts=("model",) to start the optimizer anew'
    if trained.is_eager:
        return ""  # it keeps what it likes
    for row in trained.rows:
        slot, state = trained.inputs.slots[row], trained.inputs.states[row]
        start = f"optimizer.state.{slot.name}."
        keys = {key.removeprefix(start): entry for key, entry in saved.items() if key.startswith(start)}
        keys = {name: entry for name, entry in keys.items() if "." not in name}
        if keys and set(keys) != set(state) and not _is_empty(keys):
            return (
                f"the optimizer's state of {slot.name} is {', '.join(sorted(keys))} there, {mine} keeps "
                f'{", ".join(sorted(state)) or "nothing"}; load parts=("model",) to start the optimizer anew'
            )
    return ""


def _is_empty(keys: dict[str, Any]) -> bool:
    """SGD without momentum keeps `momentum_buffer` None."""
    return not any(isinstance(entry, TensorStorageMetadata) for entry in keys.values())


def _of_settings(trained: Trained, settings: dict[str, Any]) -> str:
    groups = trained.optimizer.param_groups
    names = {id(p): name for name, p in trained.model.named_parameters()}
    counts = {int(key.split(".")[2]) for key in settings}
    if counts and len(counts) != len(groups):
        return f"its optimizer has {len(counts)} parameter groups, this one {len(groups)}; make the same groups"
    for number, group in enumerate(groups):
        start = f"optimizer.param_groups.{number}."
        there = {key.removeprefix(start): value for key, value in settings.items() if key.startswith(start)}
        mine = [names[id(p)] for p in group["params"]]
        if "params" in there and sorted(there["params"]) != sorted(mine):
            strange = set(there["params"]) ^ set(mine)
            return f"parameter group {number} holds others there ({_few(sorted(strange))}); make the same groups"
        if trained.is_eager:
            continue  # the optimizer reads its settings at each step
        other = {k: v for k, v in baked(trained.optimizer, group).items() if k in there and there[k] != v}
        if other:
            words = ", ".join(f"{key} {there[key]} there and {value} here" for key, value in other.items())
            return (
                f"parameter group {number} has {words}, which the graph holds as a constant; build the optimizer as it "
                'was, or load parts=("model",)'
            )
    return ""


def _shape(entry: Any) -> list[int] | str:
    return list(entry.size) if isinstance(entry, TensorStorageMetadata) else "no tensor"


def _few(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more
