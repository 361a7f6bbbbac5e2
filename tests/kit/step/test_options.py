"""Mixed precision, clipping, checkpointing and hybrid sharding against plain single-process training."""

import copy

import pytest
import torch
import torch.distributed as dist
from small_models import GPT, next_token_loss
from torch.distributed.device_mesh import init_device_mesh

from kit.graph.record import Phase
from kit.step.compiled import compile_step
from kit.step.strategy import DDP, FSDP, HSDP


def token_batches(count=5, rows=8):
    ids = torch.randint(0, 61, (count, rows, 17), generator=torch.Generator().manual_seed(1))
    return [(step[:, :-1], step[:, 1:]) for step in ids]


def mine(batch, ranks, rank):
    return tuple(part.chunk(ranks)[rank] for part in batch)


def relative(trained, reference):
    return max(((trained[name] - p).abs().max() / p.abs().max()).item() for name, p in reference.named_parameters())


def train_clipped(strategy, largest):
    torch.manual_seed(0)
    model = GPT().double()
    reference = copy.deepcopy(model)
    ours, plain = (torch.optim.SGD(m.parameters(), lr=0.5) for m in (model, reference))
    batches = token_batches()
    rank = dist.get_rank()
    step = compile_step(model, ours, next_token_loss, mine(batches[0], 2, rank), strategy=strategy, clip_norm=largest)
    norms = []
    for batch in batches:
        step(mine(batch, 2, rank))
        plain.zero_grad()
        next_token_loss(reference, batch).backward()
        norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), largest)
        plain.step()
        norms.append(abs(step.grad_norm.item() - norm.item()) / norm.item())
    return max(norms), relative(step.full_state_dict(), reference)


@pytest.mark.parametrize(("strategy", "largest"), [(DDP(), 0.05), (FSDP(), 0.05), (FSDP(), 100.0)], ids=str)
def test_clipping_is_that_of_torch_over_the_whole_gradient(ranks2, strategy, largest):
    for norm, parameters in ranks2.run(train_clipped, strategy, largest):
        assert norm < 1e-12
        assert parameters < 1e-10


def train_checkpointed(strategy, patterns):
    torch.manual_seed(0)
    model = GPT(layers=3).double()
    plain = copy.deepcopy(model)
    batches = [mine(batch, 2, dist.get_rank()) for batch in token_batches()]
    steps = [
        compile_step(
            m, torch.optim.AdamW(m.parameters()), next_token_loss, batches[0], strategy=strategy, checkpointing=c
        )
        for m, c in ((model, patterns), (plain, ()))
    ]
    losses = [[step(batch).item() for batch in batches] for step in steps]
    return losses, [step.predicted_peak_bytes for step in steps], [step.graph.count_by_phase() for step in steps]


@pytest.mark.parametrize("strategy", [DDP(), FSDP(bucket_mb=0.01)], ids=str)
def test_checkpointing_changes_no_loss_and_lowers_the_peak(ranks2, strategy):
    for losses, peaks, counts in ranks2.run(train_checkpointed, strategy, "blocks.*"):
        assert losses[0] == losses[1]
        assert peaks[0] < peaks[1]
        assert counts[0][Phase.BACKWARD] > counts[1][Phase.BACKWARD]  # the forward of the blocks, again


def said(call):
    try:
        call()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def wrong_options():
    def build(model=None, **options):
        model = model or GPT()
        return compile_step(
            model, torch.optim.SGD(model.parameters(), lr=0.1), next_token_loss, token_batches()[0], **options
        )

    random = GPT()
    random.blocks[0].drop = torch.nn.Dropout(0.1)
    return (
        said(lambda: build(checkpointing="layers.*")),
        said(lambda: build(model=random, checkpointing="blocks.*")),
        said(lambda: build(precision="fp8")),
        said(lambda: build(clip_norm=-1)),
        said(lambda: build(strategy="hsdp")),
    )


def test_wrong_options_are_named_with_what_is_right(ranks2):
    pattern, dropout, precision, norm, mesh = ranks2.run(wrong_options)[0]
    assert pattern.startswith(
        "CheckpointError: checkpointing pattern 'layers.*' matches no module; the model has token, "
    )
    assert dropout.startswith("CheckpointError: blocks.0.drop draws random numbers (p=0.1); computed again")
    assert precision.startswith("PrecisionError: precision 'fp8' is not known; expected None, one of 'bf16'")
    assert norm == "ValueError: clip_norm is -1, expected a number above 0 or None for no clipping"
    assert mesh.startswith("StrategyError: HSDP needs a mesh of two axes; make one with init_device_mesh")


def train_in_bf16(strategy):
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [mine(batch, 2, dist.get_rank()) for batch in token_batches()]
    step = compile_step(model, optimizer, next_token_loss, batches[0], strategy=strategy, precision="bf16")
    losses = [step(batch).item() for batch in batches]
    graph = step.graph
    products = [shape for target, shape in zip(graph.targets, graph.shapes, strict=True) if target == "aten.mm.default"]
    sent = {(send.name, send.dtype) for send in step.plan.sends if send.bytes_in > 100}
    kept = {str(value.dtype) for value in step.full_state_dict().values()}
    return losses, products, sent, kept


def in_float32():
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for batch in token_batches():
        optimizer.zero_grad()
        value = next_token_loss(model, batch)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


@pytest.mark.parametrize("strategy", [DDP(), FSDP()], ids=str)
def test_bf16_computes_in_bfloat16_reduces_in_float32_and_keeps_float32(ranks2, strategy):
    losses, products, sent, kept = ranks2.run(train_in_bf16, strategy)[0]
    assert products
    assert all(shape.startswith("bfloat16") for shape in products)
    if isinstance(strategy, FSDP):
        assert sent == {("all_gather_into_tensor", "bfloat16"), ("reduce_scatter_tensor", "float32")}
    else:
        assert sent == {("all_reduce", "float32")}
    assert kept == {"torch.float32"}
    assert losses == pytest.approx(in_float32(), rel=2e-2)  # bfloat16 has 8 bits of mantissa


def train_hybrid(reshard):
    torch.manual_seed(0)
    model = GPT(tied=True).double()
    reference = copy.deepcopy(model)
    ours, plain = (torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (model, reference))
    batches = token_batches()
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    strategy = HSDP(reshard_after_forward=reshard, bucket_mb=0.01)
    step = compile_step(
        model, ours, next_token_loss, mine(batches[0], 4, rank), strategy=strategy, mesh=mesh, clip_norm=1.0
    )
    worst = 0.0
    for batch in batches:
        got = step(mine(batch, 4, rank)).item()
        plain.zero_grad()
        value = next_token_loss(reference, batch)
        value.backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
        plain.step()
        worst = max(worst, abs(got - value.item()) / value.item())
    groups = {(send.name.split("_")[0], send.group) for send in step.plan.sends if send.bytes_in > 100}
    return worst, relative(step.full_state_dict(), reference), len(groups), step.plan.world_size


@pytest.mark.parametrize("reshard", [True, False])
def test_hybrid_sharding_on_four_ranks_equals_one_process(ranks4, reshard):
    for loss, parameters, groups, ranks in ranks4.run(train_hybrid, reshard):
        assert loss < 1e-9
        assert parameters < 1e-9
        assert groups == 3  # gather and reduce-scatter within, all-reduce between
        assert ranks == 4
