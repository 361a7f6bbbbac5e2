"""`_StridedShard`: a shard of a dim that was cut into `split_factor` pieces first. Seen on 2.11 to 2.13.

torch's own FSDP2 shows its shards of tensor-parallel parameters so, and so is a packed projection cut by blocks. In the
first case the factor is the size of another mesh axis and says in which order the axes cut. torch 2.11 takes every
factor so, and refuses to gather the second kind ("unable to be interpreted into a corresponding shard_order").
"""

from functools import cache
from typing import Any

from torch.distributed.tensor import Shard, _dtensor_spec
from torch.distributed.tensor.placement_types import Placement, _StridedShard


def strided_shard(dim: int, split_factor: int) -> Placement:
    """The placement of one mesh axis; `Shard(dim)` when there is one piece."""
    if split_factor == 1:
        return Shard(dim)
    if not hasattr(_dtensor_spec, "_StridedShardNotDecodableError"):  # 2.13 falls back by itself
        _fall_back_to_pieces()
    return _StridedShard(dim, split_factor=split_factor)


@cache
def _fall_back_to_pieces() -> None:
    """Have every new DTensor, so also one that comes of another, take factors that are no order of axes as pieces."""
    spec: Any = _dtensor_spec.DTensorSpec
    made = spec.__post_init__

    def read_factors(self: Any) -> None:
        if self.use_strided_shard_as_shard_order is None and any(
            isinstance(placement, _StridedShard) for placement in self.placements
        ):
            order = spec._maybe_convert_StridedShard_to_shard_order(tuple(self.placements), self.mesh)
            self.use_strided_shard_as_shard_order = order is not None
        made(self)

    spec.__post_init__ = read_factors
