"""torch's flight recorder: the collectives this process has begun and which of them have not ended.

Seen on torch 2.13.0+cpu with gloo: `_dump_fr_trace` names every collective, `retired` tells those that ended (the
state stays "scheduled"), send and receive are missing. NCCL has a recorder of its own, `_dump_nccl_trace`, whose
`state` becomes "completed". Without `includeStackTraces=False` the first dump takes seconds (6.4 s seen: it loads the
symbols of libtorch).

A dump asks each collective's CUDA events. That invalidates a CUDA graph that is being captured, and fails with a
line for each collective that was captured before (seen on 2.11), so once a graph is captured nothing is asked again.
"""

import pickle
import threading
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


_asking = threading.Lock()
_silent = False


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
    """The recorder's collectives begun after a moment of the wall clock, in order; empty when it is off or silenced."""
    found = [entry for name in _DUMPS for entry in _entries(name) if entry["time_created_ns"] >= since_ns]
    now = time.time_ns()
    return [_read(entry, now) for entry in sorted(found, key=lambda entry: entry["time_created_ns"])]


def dumped(*, since_ns: int, until_ns: int) -> dict[str, Any]:
    """The recorder's own dump, with Python frames, of the collectives begun in a span of the wall clock.

    States of groups come under the names that the entries use (torch writes the number of the group object). Raises
    `RuntimeError` when the recorder must not be asked. The first dump of a process takes seconds.
    """
    dumps = [_dump(name, frames=True) for name in _DUMPS]
    dump = max(dumps, key=lambda one: len(one.get("entries", ())))  # a GPU's rank has two recorders
    if not dump:
        raise RuntimeError("a CUDA graph was captured here, and torch's flight recorder cannot be asked after that")
    entries = [entry for entry in dump.get("entries", []) if since_ns <= entry["time_created_ns"] < until_ns]
    names = {str(entry["pg_id"]): entry["process_group"][0] for entry in entries if "pg_id" in entry}
    status = {names[key]: said for key, said in dump.get("pg_status", {}).items() if key in names}
    return {**dump, "pg_status": status, "entries": entries}


def silence() -> None:
    """Ask the recorder nothing from now on; returns when nobody is asking. Call it before a CUDA graph is captured."""
    global _silent
    with _asking:
        _silent = True


def _entries(name: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = _dump(name, frames=False).get("entries", [])
    return entries


def _dump(name: str, *, frames: bool) -> dict[str, Any]:
    """What one recorder holds; nothing when torch has none of the name, or it must not be asked."""
    dump = getattr(c10d, name, None)
    with _asking:
        if dump is None or _silent:
            return {}
        # The pickle comes from torch in this process: lists, dictionaries, strings and numbers.
        found: dict[str, Any] = pickle.loads(dump(includeStackTraces=frames))
    return found


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
