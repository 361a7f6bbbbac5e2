"""Send Python objects to a rank and back.

cloudpickle carries functions of the notebook by value. Plain tensors travel as raw bytes from the CPU: torch's
own pickling would go through shared memory or, for a GPU tensor, initialise CUDA in the notebook.
Large buffers stay beside the pickle (protocol 5), so that they can go another way (`link.py`).
"""

import io
import linecache
import marshal
import pickle
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

import cloudpickle

from kit.ranks.cell import remember_source
from kit.ranks.link import Frames
from kit.ranks.remote import Remote

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})  # cloudpickle has nothing to add to these


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    def __init__(self, owner: object, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._owner = owner
        self._sent: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Remote):
            if obj.group is not self._owner:
                raise ValueError(f"{obj!r} is of another group; expected a reference to an object on these ranks")
            return _fetch, (obj.name,)
        if isinstance(obj, CodeType):
            return _build_code, (marshal.dumps(obj), obj.co_filename, self._source_of(obj.co_filename))
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) in (torch.Tensor, torch.nn.Parameter) and _is_plain(obj):
            return _reduce_tensor(obj)
        return super().reducer_override(obj)

    def _source_of(self, filename: str) -> str:
        """The text of a notebook cell, sent once, so that a rank can show its lines; "" for a file on disk."""
        if filename in self._sent or Path(filename).exists():
            return ""
        self._sent.add(filename)
        return "".join(linecache.getlines(filename))


def dumps(value: Any, *, owner: object = None) -> Frames:
    """`value` as frames: the pickle first, then its large buffers; `owner` is the group whose references it may hold.

    Raises what pickling raises.
    """
    if type(value) in _PLAIN or (type(value) is tuple and are_plain(value)):
        return [pickle.dumps(value, 5)]
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Pickler(owner, stream, protocol=5, buffer_callback=buffers.append).dump(value)
    return [stream.getvalue(), *(buffer.raw() for buffer in buffers)]


def are_plain(values: tuple[Any, ...]) -> bool:
    """Whether values are numbers and texts only, which any pickler packs alike."""
    return _PLAIN.issuperset(map(type, values))


def goes_by_name(function: Callable[..., Any]) -> bool:
    """Whether a rank gets a function by importing its module, as any pickler would have it."""
    name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", None)
    return (
        module != "__main__"
        and not cloudpickle.list_registry_pickle_by_value()
        and getattr(sys.modules.get(module or ""), name, None) is function
    )


def loads(frames: Frames) -> Any:
    """What `dumps` was given. Raises what unpickling raises."""
    return pickle.loads(frames[0], buffers=frames[1:])


def by_value(function: Callable[..., Any]) -> None:
    """Have a function's module sent along when a rank could not import it (a test, a file run as a script)."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or module.__name__ == "__main__":
        return
    if not _can_be_imported(module.__name__.partition(".")[0], tuple(sys.path)):
        cloudpickle.register_pickle_by_value(module)


@lru_cache(maxsize=256)
def _can_be_imported(root: str, path: tuple[str, ...]) -> bool:
    """Whether there is a module of that name; `path`, where they are looked for, belongs to the answer."""
    return root in sys.builtin_module_names or any(
        find is not None and find(root, None) is not None
        for find in (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    )


def _fetch(name: str) -> Any:
    """Rank side of a `Remote`: the object of that name."""
    from kit.ranks.inside import fetch

    return fetch(name)


def _build_code(marshalled: bytes, filename: str, source: str) -> CodeType:
    """Code as it was, with the name of its file: cloudpickle's own way says `<dynamic-code>`."""
    if source:
        remember_source(source, filename)
    return marshal.loads(marshalled)  # type: ignore[no-any-return]


def _is_plain(tensor: Any) -> bool:
    import torch

    return bool(tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type in ("cpu", "cuda"))


def _reduce_tensor(tensor: Any) -> Any:
    import torch

    data = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()
    raw = pickle.PickleBuffer(data.reshape(-1).view(torch.uint8).numpy()) if data.numel() else b""
    parameter = isinstance(tensor, torch.nn.Parameter)
    return _build_tensor, (
        raw,
        str(data.dtype).removeprefix("torch."),
        tuple(data.shape),
        tensor.requires_grad,
        parameter,
    )


def _build_tensor(raw: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool, parameter: bool) -> Any:
    import torch

    kind = getattr(torch, dtype)
    data = torch.frombuffer(raw, dtype=kind).reshape(shape) if len(raw) else torch.empty(shape, dtype=kind)
    if parameter:
        return torch.nn.Parameter(data, requires_grad=requires_grad)
    return data.requires_grad_(requires_grad) if requires_grad else data
