"""A tensor-parallel step on GPUs against plain training on one of them."""

import copy

import pytest
import torch
from small_models import next_token_loss
from split_models import split_gpt

from kit.step.compiled import compile_step
from kit.step.strategy import TP

PLAN = {
    "blocks.*.qkv": "colwise", "blocks.*.out": "rowwise", "blocks.*.up": "colwise", "blocks.*.down": "rowwise",
    "head": "colwise_rep",
}  # fmt: skip
SEQUENCE = {"blocks.0": "split_input", "blocks.*.norm[12]": "sequence", "norm": "sequence"}
PACKED = {"blocks.*.qkv": 3}
STRATEGIES = {
    "tp": TP(plan=PLAN | {"token": "rowwise_rep"}, packed=PACKED),
    "tp+sp": TP(plan=PLAN | SEQUENCE, packed=PACKED, sequence_parallel=True),
}


def train(strategy, executor, steps):
    from kit.ranks import rank_device

    device = torch.device(rank_device())
    model = split_gpt().double().to(device)
    reference = copy.deepcopy(model)
    ours, plain = (torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (model, reference))
    ids = torch.randint(0, 61, (steps, 8, 17), generator=torch.Generator().manual_seed(1)).to(device)
    step = compile_step(
        model,
        ours,
        next_token_loss,
        (ids[0, :, :-1], ids[0, :, 1:]),
        strategy=strategy,
        executor=executor,
        clip_norm=0.5,
    )
    worst = 0.0
    for batch in ids:
        got = step((batch[:, :-1], batch[:, 1:])).item()
        plain.zero_grad()
        value = next_token_loss(reference, (batch[:, :-1], batch[:, 1:]))
        value.backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        plain.step()
        worst = max(worst, abs(got - value.item()) / value.item())
    trained = step.full_state_dict()
    return worst, max(((trained[n] - p).abs().max() / p.abs().max()).item() for n, p in reference.named_parameters())


@pytest.mark.parametrize("executor", ["eager", "inductor", "cuda_graph"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_adamw_in_float64_equals_one_process_to_1e_9(gpu_ranks, name, executor):
    for loss, parameters in gpu_ranks.run(train, STRATEGIES[name], executor, 10):
        assert loss < 1e-9
        assert parameters < 1e-9
