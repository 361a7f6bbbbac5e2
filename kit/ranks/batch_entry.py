"""What each rank of a batch file of `batch_script` runs, under torchrun, when it trains a function.

Run as `python -m kit.ranks.batch_entry`: it joins the process group and calls the function that the batch file holds.
"""

import base64
import os
import pickle
import signal
import sys
import zlib
from datetime import timedelta
from types import FrameType

_time_is_up = False


def time_is_up() -> bool:
    """Whether the job's time is nearly over: save and return. Always false in a notebook."""
    this = sys.modules.get("__main__")
    return bool(_time_is_up or getattr(this, "_time_is_up", False))


def run_rank() -> None:
    """Join the process group and call the function of the batch file. Raises what it raises."""
    signal.signal(signal.SIGUSR2, _note)
    import torch
    import torch.distributed as dist

    backend = os.environ["KIT_BATCH_BACKEND"]
    device = None
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    # the batch file is the person's own; whoever can change it can run anything anyway
    function, args = pickle.loads(zlib.decompress(base64.b64decode(os.environ["KIT_BATCH_PAYLOAD"])))
    timeout = timedelta(seconds=int(os.environ["KIT_BATCH_TIMEOUT"]))
    dist.init_process_group(backend, timeout=timeout, device_id=device)
    function(*args)
    dist.destroy_process_group()


def _note(number: int, frame: FrameType | None) -> None:
    global _time_is_up
    _time_is_up = True


if __name__ == "__main__":
    run_rank()
    # All is done and said. The interpreter's own way out can meet a thread of gloo that still runs, and then the
    # process ends by std::terminate and the job as failed (seen, torch 2.13).
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
