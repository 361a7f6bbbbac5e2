"""Tell communication from computation by name, once for each distinct name.

New NCCL builds put "Collective name" on the kernel, which is the best evidence; CUDA graphs and old files lack
it, and only the name is left. The rules and what they were seen on: facts of this room, and traces of H200 (NCCL
2.28), MI250 (RCCL), vLLM and dlrm (V100).
"""

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kit.timeline.record import DEVICE_CATEGORIES, Category, Timeline

_COMMUNICATION = re.compile(r"nccl|rccl|hccl|cross_device_reduce|multimem_all|nvshmem|deep_ep", re.IGNORECASE)
_COMPUTATION = re.compile(r"\Atriton_|SyncStats|batch_norm", re.IGNORECASE)

# Host calls that start or await a collective: time in them is communication, whatever operators they hold.
_COLLECTIVE_CALL = re.compile(r"\A(?:c10d::|_?c10d_functional(?:_autograd)?::|record_param_comms\Z)")
# The work itself, on a thread of the CPU backend.
_WORK = re.compile(r"\A(?:gloo|mpi|ucc):")
# Ranges that stand for compiled code: Inductor's C++ kernels leave no operator in a trace.
_COMPILED = re.compile(r"\A(?:## Call CompiledFxGraph|Torch-Compiled Region|graph_\d+_cpp_fused|cpp_fused)")


def is_communication_kernel(name: str) -> bool:
    """Whether a device kernel of this name moves data between devices."""
    return bool(_COMMUNICATION.search(name)) and not _COMPUTATION.search(name)


def is_collective_call(name: str) -> bool:
    """Whether a host operator of this name starts or awaits a collective."""
    return bool(_COLLECTIVE_CALL.match(name))


def is_collective_work(name: str) -> bool:
    """Whether a host range of this name is a collective at work on a CPU backend's thread."""
    return bool(_WORK.match(name))


def is_compiled_call(name: str) -> bool:
    """Whether a host range of this name is compiled code that runs."""
    return bool(_COMPILED.match(name))


def rows_named(timeline: Timeline, hits: Iterable[bool]) -> NDArray[np.bool_]:
    """For each row, whether `hits` (one answer for each of `timeline.strings`) holds for its name."""
    answers: NDArray[np.bool_] = np.fromiter(hits, np.bool_, len(timeline.strings))
    return answers[timeline.name]


def device_rows(timeline: Timeline) -> NDArray[np.bool_]:
    """Rows that occupy a device: kernels, copies and sets."""
    return np.isin(timeline.category, DEVICE_CATEGORIES)


def communication_kernels(timeline: Timeline) -> NDArray[np.bool_]:
    """Rows that are kernels of a collective, by their arguments or else by name."""
    by_name = rows_named(timeline, (is_communication_kernel(name) for name in timeline.strings))
    kernel: NDArray[np.bool_] = timeline.category == Category.KERNEL
    return kernel & (by_name | (timeline.collective >= 0))
