"""A compiled step on two GPUs (NCCL) against plain single-process training on one of them."""

import copy

import pytest
import torch
from small_models import GPT, next_token_loss

from kit.step.compiled import compile_step
from kit.step.strategy import DDP, FSDP


def train(strategy, executor, accumulation):
    import torch.distributed as dist

    from kit.ranks import rank_device

    rank, world_size, device = dist.get_rank(), dist.get_world_size(), torch.device(rank_device())
    torch.manual_seed(0)
    model = GPT().double().to(device)
    reference = copy.deepcopy(model)
    ours, plain = (torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (model, reference))
    ids = torch.randint(0, 61, (5, 8, 17), generator=torch.Generator().manual_seed(1)).to(device)

    def window(batch):
        return [(part[:, :-1], part[:, 1:]) for part in batch.chunk(world_size)[rank].chunk(accumulation)]

    step = compile_step(
        model, ours, next_token_loss, window(ids[0])[0], strategy=strategy, executor=executor, accumulation=accumulation
    )
    worst = 0.0
    for batch in ids:
        got = step(*window(batch)).item()
        plain.zero_grad()
        value = next_token_loss(reference, (batch[:, :-1], batch[:, 1:]))
        value.backward()
        plain.step()
        worst = max(worst, abs(got - value.item()) / value.item())
    trained = step.full_state_dict()
    parameters = max(
        ((trained[name] - p).abs().max() / p.abs().max()).item() for name, p in reference.named_parameters()
    )
    known = [
        bool(source) for source, phase in zip(step.graph.sources, step.graph.phases, strict=True) if phase == "backward"
    ]
    return worst, parameters, sum(known) / len(known)


@pytest.mark.parametrize("executor", ["eager", "inductor"])
@pytest.mark.parametrize("strategy", [DDP(), FSDP(bucket_mb=0.01), FSDP(reshard_after_forward=False)], ids=str)
def test_adamw_in_float64_equals_one_process_to_1e_9(gpus2, strategy, executor):
    for loss, parameters, known in gpus2.run(train, strategy, executor, 2):
        assert loss < 1e-9
        assert parameters < 1e-9
        assert known > 0.75  # the backward runs on another thread than on the CPU and is mapped all the same
