"""A compiled step on GPUs against plain single-process training on one of them."""

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


def profile():
    import kit
    from kit.ranks import rank_device

    device = torch.device(rank_device())
    torch.manual_seed(0)
    model = GPT(width=256, context=128, layers=4).to(device)
    ids = torch.randint(0, 61, (16, 129)).to(device)
    batch = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    step = compile_step(
        model, torch.optim.AdamW(model.parameters()), next_token_loss, batch, strategy=FSDP(bucket_mb=1.0)
    )
    return kit.profile(step, [batch] * 4, warmup=2, active=2)


def test_a_live_profile_sees_kernels_and_its_parts_sum_to_the_window(gpu_ranks):
    from kit.timeline.measure import breakdown

    timeline = gpu_ranks.run(profile)[0]
    assert timeline.ranks == tuple(range(gpu_ranks.world_size))
    for row in breakdown(timeline):
        assert not row.cpu_only
        assert row.compute_ns > 0
        parts = row.compute_ns + row.exposed_communication_ns + row.exposed_copy_ns + row.idle_ns
        assert parts == row.window_ns


def measured_memory():
    import itertools

    from kit.ranks import rank_device
    from kit.tuning.record import Setting
    from kit.tuning.search import measure_setting

    device = torch.device(rank_device())

    def build(setting):
        torch.manual_seed(0)
        model = GPT(width=128, layers=4).to(device)
        ids = torch.randint(0, 61, (setting.micro_batch, 17)).to(device)
        window = [(ids[:, :-1], ids[:, 1:])] * setting.accumulation
        return compile_step(
            model, torch.optim.AdamW(model.parameters()), next_token_loss, window, strategy="fsdp"
        ), itertools.repeat(window)

    return [measure_setting(Setting(micro_batch=size, accumulation=1), build) for size in (4, 64)]


def test_a_measurement_reads_the_cuda_allocator(gpu_ranks):
    small, large = gpu_ranks.run(measured_memory)[0]
    assert small.peak_method == "CUDA allocator, measured"
    assert 0 < small.peak_bytes < large.peak_bytes


@pytest.mark.parametrize("executor", ["eager", "inductor"])
@pytest.mark.parametrize("strategy", [DDP(), FSDP(bucket_mb=0.01), FSDP(reshard_after_forward=False)], ids=str)
def test_adamw_in_float64_equals_one_process_to_1e_9(gpu_ranks, strategy, executor):
    for loss, parameters, known in gpu_ranks.run(train, strategy, executor, 2):
        assert loss < 1e-9
        assert parameters < 1e-9
        assert known > 0.75  # the backward runs on another thread than on the CPU and is mapped all the same


def refused():
    torch.manual_seed(0)
    model = GPT().cuda()
    ids = torch.randint(0, 61, (4, 17)).cuda()
    try:
        compile_step(model, torch.optim.AdamW(model.parameters()), next_token_loss, (ids[:, :-1], ids[:, 1:]))
    except ValueError as error:
        return str(error)
    return "nothing was raised"


def test_gloo_ranks_that_share_a_gpu_are_refused_before_they_crash():
    if not torch.cuda.device_count():
        pytest.skip("0 GPUs here, this needs 1")
    from kit.ranks import launch

    with launch(2, backend="gloo", device="cuda") as ranks:
        for text in ranks.run(refused):
            assert text.startswith("the model is on cuda:0 and the group's backend is gloo")
