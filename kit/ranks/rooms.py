"""Memory for large frames that arrive, used again when nothing of what lay in it is left.

Fresh memory is zeroed and mapped page by page at its first use, and malloc gives 20 MB back to the system at once when
they are freed: two tensors of 10 MB took 20 ms to copy in, and 2 ms into memory that was used before (2 loaded
cores). So up to `IDLE_BYTES` are kept for the next frames; `clear` gives them back.
"""

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

IDLE_BYTES = 32 << 20  # what a process keeps at most while nobody uses it
KEPT_BYTES = 1 << 18  # malloc keeps smaller ones itself

_idle: "list[numpy.ndarray[Any, Any]]" = []


def room(size: int) -> memoryview:
    """Writable memory of `size` bytes with any content, the caller's for as long as something refers to it.

    What is built over it (a tensor, an array, a part of either) refers to the memory's exporter, however it is cut.
    """
    import numpy  # takes 0.1 s; whoever sends much has it

    if size < KEPT_BYTES:
        return memoryview(numpy.empty(size, dtype=numpy.uint8))  # type: ignore[arg-type]  # stubs before numpy 2.4
    memory = _take(size)
    if memory is None:
        memory = numpy.empty(size, dtype=numpy.uint8)
    exporter = memory[:size]
    weakref.finalize(exporter, _give_back, memory).atexit = False
    return memoryview(exporter)  # type: ignore[arg-type]  # as above


def clear() -> None:
    """Give back what nobody uses."""
    _idle.clear()


def _take(size: int) -> "numpy.ndarray[Any, Any] | None":
    """The smallest idle memory that holds so much and is not more than twice as large."""
    fitting = [memory for memory in tuple(_idle) if size <= memory.nbytes <= 2 * size]
    for memory in sorted(fitting, key=lambda one: one.nbytes):
        for place, other in enumerate(_idle):
            if other is memory:
                del _idle[place]
                return memory
    return None


def _give_back(memory: "numpy.ndarray[Any, Any]") -> None:
    if sum(one.nbytes for one in _idle) + memory.nbytes <= IDLE_BYTES:
        _idle.append(memory)
