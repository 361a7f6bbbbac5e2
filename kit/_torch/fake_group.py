"""A process group of any size in one process, which sends nothing. Seen on 2.11 and 2.13.

Shapes, counts and orders are exact for the rank it plays; values mean nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def fake_world(size: int, *, rank: int = 0) -> Iterator[None]:
    """Be rank `rank` of `size` within the block. Raises RuntimeError when a process group exists here."""
    if dist.is_initialized():
        raise RuntimeError(
            f"this process is in a process group of {dist.get_world_size()} already; plan in the notebook itself or in "
            "a script without one, not on a rank"
        )
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
