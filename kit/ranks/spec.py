"""What a new rank must know."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """`device` is "cpu" or "cuda"; `epoch` is the one the rank will join first."""

    rank: int
    world_size: int
    backend: str
    device: str
    threads: int
    host: str
    port: int
    epoch: int
    check_collectives: bool
