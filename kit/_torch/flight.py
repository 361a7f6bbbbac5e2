"""torch's flight recorder: the collectives this process has begun and which of them have not ended.

Seen on torch 2.13.0+cpu with gloo: `_dump_fr_trace` names every collective, `retired` tells those that ended (the
state stays "scheduled"), send and receive are missing. NCCL has a recorder of its own, `_dump_nccl_trace`, whose
`state` becomes "completed". Without `includeStackTraces=False` the first dump takes seconds (6.4 s seen: it loads the
symbols of libtorch).
"""

import pickle
import time
from dataclasses import dataclass
from typing import Any

from torch._C import _distributed_c10d as c10d

BUFFER_VARIABLE = "TORCH_FR_BUFFER_SIZE"

_DUMPS = ("_dump_fr_trace", "_dump_nccl_trace")
_DTYPES = {
    "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64", "Half": "float16",
    "Float": "float32", "Double": "float64", "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
_KINDS = {
    "_all_gather_base": "all_gather_into_tensor",
    "_allgather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "all_reduce_barrier": "barrier",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One collective: `kind` as the user calls it, `number` in its group (counted from 1, torch's own barriers too).

    `tensors`: dtype and shape of each input, as in "float32[4]". `seconds` since it was begun.
    """

    kind: str
    group: str
    number: int
    tensors: str
    seconds: float
    ended: bool


def recorded(*, since_ns: int) -> list[Entry]:
    """The recorder's collectives begun after a moment of the wall clock, in order; empty when it is switched off."""
    found = [entry for name in _DUMPS for entry in _entries(name) if entry["time_created_ns"] >= since_ns]
    now = time.time_ns()
    return [_read(entry, now) for entry in sorted(found, key=lambda entry: entry["time_created_ns"])]


def _entries(name: str) -> list[dict[str, Any]]:
    dump = getattr(c10d, name, None)
    if dump is None:
        return []
    # The pickle comes from torch in this process: lists, dictionaries, strings and numbers.
    entries: list[dict[str, Any]] = pickle.loads(dump(includeStackTraces=False)).get("entries", [])
    return entries


def _read(entry: dict[str, Any], now: int) -> Entry:
    kind = entry["profiling_name"].partition(":")[2] or entry["profiling_name"]
    shapes = zip(entry["input_dtypes"], entry["input_sizes"], strict=False)
    return Entry(
        kind=_KINDS.get(kind, kind),
        group=_group_of(entry),
        number=entry["p2p_seq_id"] if entry.get("is_p2p") else entry["collective_seq_id"],
        tensors=", ".join(f"{_DTYPES.get(dtype, dtype.lower())}{list(shape)}" for dtype, shape in shapes),
        seconds=max(0.0, (now - entry["time_created_ns"]) / 1e9),
        ended=bool(entry.get("retired")) or entry.get("state") == "completed",
    )


def _group_of(entry: dict[str, Any]) -> str:
    """The group's description, "" for the group of all ranks."""
    _, description = entry.get("process_group", ("", ""))
    return "" if description == "default_pg" else str(description)
