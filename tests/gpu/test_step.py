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
    model = GPT(layers=2).double().to(device)
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
    model = GPT(layers=2).cuda()
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


def against_the_plain_graph(strategy, steps, aborted_at):
    import torch.distributed as dist

    from kit.ranks import rank_device

    device = torch.device(rank_device())
    torch.manual_seed(0)
    models = [GPT(width=64, context=32, layers=2).to(device) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    ids = torch.randint(0, 61, (steps, 8, 33), generator=torch.Generator().manual_seed(dist.get_rank())).to(device)
    batches = [(part[:, :-1], part[:, 1:]) for part in ids]
    graph, plain = (
        compile_step(
            model, torch.optim.AdamW(model.parameters(), lr=1e-3), next_token_loss, batches[0], strategy=strategy,
            executor=executor, clip_norm=1.0,
        )
        for model, executor in zip(models, ("cuda_graph", "inductor"), strict=True)
    )  # fmt: skip
    worst = 0.0
    for number, batch in enumerate(batches):
        if number == aborted_at:
            graph._variants.first.run.forget()  # as before an abort: warms up and captures again
        a, b = graph(batch), plain(batch)
        worst = max(worst, abs(a.item() - b.item()) / b.item(), abs((graph.grad_norm - plain.grad_norm).item()))
    return worst, graph._variants.first.run._graph is not None, graph.steps_done


@pytest.mark.parametrize("strategy", [DDP(), FSDP(bucket_mb=0.05)], ids=str)
def test_a_cuda_graph_trains_as_the_graph_without_it_step_by_step(gpu_ranks, strategy):
    for worst, captured, steps in gpu_ranks.run(against_the_plain_graph, strategy, 20, 10):
        assert worst < 1e-4  # float32, the same kernels; NCCL may sum in another order
        assert captured
        assert steps == 20


def test_a_cuda_graph_is_dropped_before_an_abort_and_training_goes_on(gpu_ranks):
    from kit.ranks import RankError

    gpu_ranks.push(GPT=GPT, next_token_loss=next_token_loss)
    gpu_ranks.execute("""
torch.manual_seed(0)
model = GPT(layers=2).to(device)
ids = torch.randint(0, 61, (4, 17)).to(device)
batch = ids[:, :-1], ids[:, 1:]
step = kit.compile_step(model, torch.optim.AdamW(model.parameters()), next_token_loss, batch, executor="cuda_graph")
before = [step(batch).item() for _ in range(8)]
""")
    with pytest.raises(RankError, match="broken"):
        gpu_ranks.execute("if rank == 0: raise ValueError('broken')\ndist.all_reduce(torch.ones(1, device=device))")
    gpu_ranks.execute("after = [step(batch).item() for _ in range(8)]")
    for losses in gpu_ranks.pull("before + after"):
        assert losses == sorted(losses, reverse=True)


def resume(folder, strategy, executor):
    """Eight steps, a save, four more; then a captured step of another model loads and goes the same four."""
    import torch.distributed as dist

    from kit.ranks import rank_device

    device = torch.device(rank_device())
    ids = torch.randint(0, 61, (4, 17), generator=torch.Generator().manual_seed(dist.get_rank())).to(device)
    batch = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    losses = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = GPT(tied=True, layers=2)
        model.norm = torch.nn.Sequential(model.norm, torch.nn.Dropout(0.2))
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        step = compile_step(model, optimizer, next_token_loss, batch, strategy=strategy, executor=executor)
        torch.manual_seed(10 * seed + dist.get_rank())
        for _ in range(8):
            step(batch)
        memory = [tensor.data_ptr() for tensor in step._held]
        if seed == 1:
            step.save(folder)
        else:
            step.load(folder)
        losses.append([step(batch).item() for _ in range(4)])
        assert [tensor.data_ptr() for tensor in step._held] == memory
        assert step.steps_done == 12
        run = step._variants.first.run
        if hasattr(run, "forget"):
            run.forget()
    return losses


@pytest.mark.parametrize("strategy", [DDP(), FSDP()], ids=str)
@pytest.mark.parametrize("executor", ["eager", "cuda_graph"])
def test_a_saved_step_goes_on_in_captured_memory(gpu_ranks, tmp_path, strategy, executor):
    for whole, again in gpu_ranks.run(resume, tmp_path / "step", strategy, executor):
        assert again == pytest.approx(whole, rel=1e-5)  # an embedding's backward adds in any order
        assert len(set(whole)) == 4
