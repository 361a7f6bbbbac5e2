"""Run steps and put everything back: what is tried out must not train the model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch


@contextmanager
def undone(held: Sequence[torch.Tensor]) -> Iterator[None]:
    """Put tensors and the random state back as they were when the block ends."""
    kept = [tensor.clone() for tensor in held]
    with torch.random.fork_rng(devices=[held[0].device] if held[0].is_cuda else []):
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, before in zip(held, kept, strict=True):
                    tensor.copy_(before)
