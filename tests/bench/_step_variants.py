"""The variants that tests/bench/step.py times: torch's own ways to train a GPT over ranks, and the kit's.

Every variant is a function that runs one step and returns the loss. All train the same model on the same batch with
AdamW and compute in bfloat16; torch's ways keep float32 parameters and use autocast (DDP) or a mixed-precision policy
(FSDP2), as their documentation recommends; the kit's match them in what is reduced in which format.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Step = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A model and its micro-batch."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    context: int
    micro_batch: int


SIZES = {
    "tiny": Size(layers=3, width=128, heads=4, vocabulary=512, context=64, micro_batch=8),
    "163m": Size(layers=12, width=768, heads=12, vocabulary=50304, context=1024, micro_batch=16),
    "1b": Size(layers=16, width=2048, heads=16, vocabulary=50304, context=1024, micro_batch=4),
}


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Mean cross entropy of the next token, in float32 as is usual."""
    ids, targets = batch
    return F.cross_entropy(model(ids).flatten(0, 1).float(), targets.flatten())


class Bench:
    """Makes models and variants on this rank."""

    def __init__(self, size: Size, device: torch.device, gpt: type[nn.Module]) -> None:
        self.size, self.device, self.gpt = size, device, gpt
        rank = torch.distributed.get_rank()
        shape = (size.micro_batch, size.context + 1)
        ids = torch.randint(0, size.vocabulary, shape, generator=torch.Generator().manual_seed(rank)).to(device)
        self.batch = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def model(self) -> nn.Module:
        """The same weights each time."""
        torch.manual_seed(0)
        size = self.size
        with self.device:
            return self.gpt(
                vocabulary=size.vocabulary, context=size.context, width=size.width, layers=size.layers,
                heads=size.heads,
            )  # fmt: skip

    def adamw(self, model: nn.Module) -> torch.optim.AdamW:
        """Fused, as fast as torch has it."""
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def _steps(self, model: nn.Module, optimizer: torch.optim.Optimizer, autocast: bool) -> Step:
        def step() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=autocast):
                loss = loss_of(model, self.batch)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    def ddp(self, compiled: bool = False) -> Step:
        """DistributedDataParallel with autocast."""
        from torch.nn.parallel import DistributedDataParallel

        ids = [self.device.index] if self.device.type == "cuda" else None
        model: Any = DistributedDataParallel(self.model(), device_ids=ids, gradient_as_bucket_view=True)
        optimizer = self.adamw(model)
        return self._steps(torch.compile(model) if compiled else model, optimizer, autocast=True)

    def fsdp2(self, reshard: bool, compile_blocks: bool = False) -> Step:
        """fully_shard of each block and the whole, parameters gathered and gradients reduced in bfloat16."""
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        model: Any = self.model()
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        for block in model.blocks:
            if compile_blocks:
                block.compile()
            fully_shard(block, mp_policy=policy, reshard_after_forward=reshard)
        fully_shard(model, mp_policy=policy, reshard_after_forward=reshard)
        return self._steps(model, self.adamw(model), autocast=False)

    def kit(self, strategy: Any, precision: str, executor: str) -> tuple[Step, Any]:
        """The whole step as one graph."""
        import kit

        model = self.model()
        step = kit.compile_step(
            model, torch.optim.AdamW(model.parameters(), lr=1e-4), loss_of, self.batch, strategy=strategy,
            precision=precision, executor=executor,
        )  # fmt: skip
        return (lambda: step(self.batch)), step


def variants(bench: Bench, *, gpu: bool) -> dict[str, Callable[[], Step | tuple[Step, Any]]]:
    """Name to builder. On a CPU, where Inductor takes minutes to compile, the graph runs as it is."""
    import kit

    graph = "cuda_graph" if gpu else "eager"
    shard, keep = kit.FSDP(bucket_mb=_bucket_mb(bench)), kit.FSDP(
        bucket_mb=_bucket_mb(bench), reshard_after_forward=False
    )  # fmt: skip
    return {
        "eager DDP": bench.ddp,
        "FSDP2": lambda: bench.fsdp2(True),
        "FSDP2 no reshard": lambda: bench.fsdp2(False),
        "kit ddp": lambda: bench.kit(kit.DDP(), "bf16", graph),
        "kit fsdp": lambda: bench.kit(shard, "pure_bf16", graph),
        "kit fsdp no reshard": lambda: bench.kit(keep, "pure_bf16", graph),
    }


def extras(bench: Bench) -> dict[str, Callable[[], Step | tuple[Step, Any]]]:
    """Measured after the rounds, one after another."""
    return {
        "DDP + compile": lambda: bench.ddp(compiled=True),
        "FSDP2 + compiled blocks": lambda: bench.fsdp2(True, compile_blocks=True),
    }


def _bucket_mb(bench: Bench) -> float:
    """About one block of parameters a reduction: 12 width^2 of them, two bytes each."""
    return 12 * bench.size.width**2 * 2 * 1.1 / 1e6
