"""Bytes and bandwidth of a collective, by the definitions of nccl-tests (doc/PERFORMANCE.md of NVIDIA/nccl-tests).

Algorithm bandwidth = S / t. Bus bandwidth = algorithm bandwidth x a factor that makes it comparable with the speed of
the links, whatever the number of ranks n. S is the size that the collective is called with:

| collective | S | factor |
|---|---|---|
| all-reduce | bytes in | 2 (n - 1) / n |
| all-gather | bytes out (all ranks' shards) | (n - 1) / n |
| reduce-scatter | bytes in (all ranks' shards) | (n - 1) / n |
| all-to-all | bytes in | (n - 1) / n |
| broadcast, reduce, send and receive | bytes in | 1 |

t is the shortest of the ranks' kernel times: a rank that came early holds its kernel open while it waits, so its time
is no transfer time (facts of this room: 88.6 of 91.2 ms on one rank of a capture were waiting).
"""

import re
from collections.abc import Callable

# Of kind, as a function of n. The order matters: `reduce` after `allreduce`, whose name holds it too.
_FACTORS: dict[str, Callable[[int], float]] = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "allgather": lambda n: (n - 1) / n,
    "reducescatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "sendrecv": lambda n: 1.0,
    "send": lambda n: 1.0,
    "recv": lambda n: 1.0,
}
_BYTES = {
    "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2, "long": 8, "int64": 8,
    "int": 4, "int32": 4, "short": 2, "int16": 2, "char": 1, "int8": 1, "byte": 1, "uint8": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip


def collective_kind(name: str) -> str:
    """`allreduce`, `allgather`, ... of any spelling (`_allgather_base`, a kernel's name); "" for none of them."""
    bare = re.sub(r"[^a-z]", "", name.lower())
    return next((kind for kind in _FACTORS if kind in bare), "")


def element_bytes(dtype: str) -> int | None:
    """Bytes of one element of a dtype as traces spell it (`BFloat16`, `Float`); None when unknown."""
    return _BYTES.get(dtype.lower().replace("c10::", "").replace("torch.", ""))


def message_bytes(kind: str, elements_in: int, elements_out: int, dtype: str) -> int | None:
    """S of the table; None when the file does not say the elements or the dtype."""
    each = element_bytes(dtype)
    elements = elements_out if kind == "allgather" else elements_in
    return None if each is None or elements < 0 or not kind else elements * each


def algorithm_gbps(size_bytes: int, transfer_ns: int) -> float | None:
    """S / t in GB/s (10**9 bytes a second); None without time."""
    return size_bytes / transfer_ns if transfer_ns > 0 else None


def bus_gbps(kind: str, algorithm: float, ranks: int) -> float | None:
    """Bus bandwidth of a collective among `ranks`; None for a kind without a factor or for one rank."""
    factor = _FACTORS.get(kind)
    return None if factor is None or ranks < 2 else algorithm * factor(ranks)
