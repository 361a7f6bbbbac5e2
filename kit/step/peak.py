"""The most memory a stretch of work took on this rank, above what was in use before it."""

import ctypes
import gc
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
CUDA_METHOD = "CUDA allocator, above what was allocated before"
CPU_METHOD = "resident memory of the process, above what was resident before (libraries and compilers included)"
NO_METHOD = "not measured: this system does not let a process reset its peak (/proc/self/clear_refs)"


class Peak:
    """Begins when it is made; `bytes_taken()` is the peak since then, None where it cannot be told."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        gc.collect()
        self.method = CUDA_METHOD if self._cuda else CPU_METHOD
        if self._cuda:
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            self._before = torch.cuda.memory_allocated(device)
            return
        _give_back_free_memory()
        try:
            _RESET.write_text("5")  # the kernel's "forget the peak of resident memory" (proc(5))
        except OSError:
            self.method = NO_METHOD
        self._before = _status("VmRSS")

    def bytes_taken(self) -> int | None:
        """The peak since the beginning, less what was in use then."""
        if self._cuda:
            return int(torch.cuda.max_memory_allocated()) - self._before
        return None if self.method == NO_METHOD else max(0, _status("VmHWM") - self._before)


def _give_back_free_memory() -> None:
    """Let glibc return what is free, or the next stretch would take it without growing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
