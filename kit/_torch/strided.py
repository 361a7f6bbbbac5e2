"""`_StridedShard`: a shard of a dim that was cut into `split_factor` pieces first. Seen on 2.11 to 2.13.

torch's own FSDP2 shows its shards of tensor-parallel parameters so.
"""

from torch.distributed.tensor import Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard


def strided_shard(dim: int, split_factor: int) -> Placement:
    """The placement of one mesh axis; `Shard(dim)` when there is one piece."""
    return Shard(dim) if split_factor == 1 else _StridedShard(dim, split_factor=split_factor)
