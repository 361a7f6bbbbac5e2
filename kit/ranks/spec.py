"""What a new rank must know."""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """`device` is "cpu" or "cuda"; `epoch` is the one the rank will join first; `threads` 0: share the cores out.

    `local_rank` and `local_world_size` count the ranks that see the same GPUs of one machine.
    """

    rank: int
    world_size: int
    backend: str
    device: str
    threads: int
    host: str
    port: int
    epoch: int
    check_collectives: bool
    local_rank: int
    local_world_size: int


def variables(spec: Spec, *, interface: str) -> dict[str, str]:
    """What torch and its libraries read from a rank's environment; `interface` "" leaves the choice to them."""
    chosen = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}
    return {
        "RANK": str(spec.rank),
        "LOCAL_RANK": str(spec.local_rank),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_WORLD_SIZE": str(spec.local_world_size),
        "OMP_NUM_THREADS": str(spec.threads),
        "TORCH_GLOO_LAZY_INIT": "0",  # sockets opened later would not be known to the guard
        # How many collectives torch's flight recorder keeps, for `Ranks.stacks`.
        "TORCH_FR_BUFFER_SIZE": os.environ.get("TORCH_FR_BUFFER_SIZE", "200"),
        **chosen,
    }
