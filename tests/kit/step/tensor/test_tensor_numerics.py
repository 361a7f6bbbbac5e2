"""Tensor parallel steps on gloo ranks against plain single-process training of the same global batch."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from small_models import Perceptron, next_token_loss
from split_models import PACKED, PLAN, SEQUENCE, VOCABULARY, Apart, Styles, split_gpt
from torch import nn

from kit.step.compiled import compile_step
from kit.step.strategy import DDP, FSDP, TP

STEPS = 5


def tp(plan=PLAN, **options):
    return TP(plan=plan, packed=PACKED, **options)


def sequence(**options):
    return tp(SEQUENCE, sequence_parallel=True, **options)


def token_batches(count=STEPS, rows=8, length=17):
    ids = torch.randint(0, 61, (count, rows, length), generator=torch.Generator().manual_seed(1))
    return [(step[:, :-1], step[:, 1:].clone()) for step in ids]


def optimizer_of(name, model):
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(strategy, optimizer, dtype, options=None):
    """The largest relative difference of losses, of parameters and of gradient norms after training both ways."""
    import torch.distributed as dist

    options = dict(options or {})
    accumulation, clip = options.get("accumulation", 1), options.get("clip_norm")
    model = options.pop("make", partial(split_gpt, tied=options.pop("tied", False), layers=options.pop("layers", 1)))()
    model.to(dtype)
    reference = copy.deepcopy(model)
    ours, plain = optimizer_of(optimizer, model), optimizer_of(optimizer, reference)
    groups = dist.get_world_size() // (strategy.ranks or dist.get_world_size())
    group = dist.get_rank() // (strategy.ranks or dist.get_world_size())

    def window(batch):
        mine = [part.chunk(groups)[group].chunk(accumulation) for part in batch]
        return list(zip(*mine, strict=True))

    batches = token_batches()
    step = compile_step(model, ours, next_token_loss, window(batches[0])[0], strategy=strategy, **options)
    errors, norms = [0.0], [0.0]
    for batch in batches:
        got = step(*window(batch)).item()
        plain.zero_grad()
        value = next_token_loss(reference, batch)
        value.backward()
        if clip is not None:
            norm = nn.utils.clip_grad_norm_(reference.parameters(), clip)
            norms.append((abs(step.grad_norm - norm) / norm).item())
        plain.step()
        errors.append(abs(got - value.item()) / abs(value.item()))
    trained = step.full_state_dict()
    parameters = [((trained[n] - p).abs().max() / p.abs().max()).item() for n, p in reference.named_parameters()]
    return max(errors), max(parameters), max(norms)


TWO = {
    "tp": tp(),
    "tp vocabulary": tp(PLAN | VOCABULARY),
    "tp+sp": sequence(),
}
FOUR = {
    "fsdp x tp": tp(PLAN | VOCABULARY, ranks=2, data=FSDP(bucket_mb=0.01)),
    "fsdp x tp+sp": sequence(ranks=2, data=FSDP(reshard_after_forward=False)),
    "ddp x tp": tp(ranks=2, data=DDP()),
}


@pytest.mark.parametrize("name", ["tp vocabulary", "tp+sp"])
def test_sgd_in_float32_equals_one_process_to_1e_5(ranks2, name):
    for errors in ranks2.run(train, TWO[name], "sgd", torch.float32, {"layers": 2}):
        assert max(errors) < 1e-5


@pytest.mark.parametrize("name", TWO)
def test_adamw_in_float64_equals_one_process_to_1e_9(ranks2, name):
    options = {"clip_norm": 0.5, "accumulation": 2, "executor": "aot_eager"}
    for errors in ranks2.run(train, TWO[name], "adamw", torch.float64, options):
        assert max(errors) < 1e-9


@pytest.mark.parametrize("name", FOUR)
def test_adamw_on_two_axes_equals_one_process(ranks4, name):
    options = {"clip_norm": 0.5, "executor": "aot_eager"}
    for errors in ranks4.run(train, FOUR[name], "adamw", torch.float64, options):
        assert max(errors) < 1e-9


def test_sgd_and_accumulation_on_two_axes_equal_one_process(ranks4):
    for errors in ranks4.run(train, FOUR["fsdp x tp+sp"], "sgd", torch.float32, {"accumulation": 2}):
        assert max(errors) < 1e-5


def perceptron():
    torch.manual_seed(0)
    return Perceptron()


def test_inductor_changes_no_result(ranks2):
    strategy = TP(plan={"up": "colwise", "down": "rowwise"})
    for errors in ranks2.run(train, strategy, "sgd", torch.float32, {"executor": "inductor", "make": perceptron}):
        assert max(errors) < 1e-5


def test_tied_weights_split_by_the_vocabulary_equal_one_process(ranks2):
    for errors in ranks2.run(train, TWO["tp vocabulary"], "adamw", torch.float64, {"tied": True, "clip_norm": 0.5}):
        assert max(errors) < 1e-9


def test_checkpointed_blocks_send_again_and_equal_one_process(ranks2):
    for errors in ranks2.run(train, TWO["tp+sp"], "adamw", torch.float64, {"checkpointing": "blocks.*"}):
        assert max(errors) < 1e-9


def worst(step, reference):
    trained = step.full_state_dict()
    return max(((trained[n] - p).abs().max() / p.abs().max()).item() for n, p in reference.named_parameters())


def ids_and_targets(model, batch):
    ids, targets = batch
    return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())


def train_small(make, plan, rows, *, vocabulary=10, dropout_seed=None):
    """A small net on the same batch everywhere; error, sends and the copies of this rank."""
    torch.manual_seed(0)
    model = make().double()
    reference = copy.deepcopy(model)
    batch = (
        torch.randint(0, vocabulary, (rows, 6), generator=torch.Generator().manual_seed(2)),
        torch.randint(0, vocabulary, (rows, 6), generator=torch.Generator().manual_seed(3)),
    )
    plain, ours = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (reference, model))
    step = compile_step(model, ours, ids_and_targets, batch, strategy=TP(plan=plan))
    for _ in range(3):
        step(batch)
        plain.zero_grad()
        ids_and_targets(reference, batch).backward()
        plain.step()
    return worst(step, reference), [(send.name, send.phase) for send in step.plan.sends]


def styles():
    return Styles()


def test_embeddings_by_rows_and_columns_and_whole_inputs_equal_one_process(ranks2):
    plan = {"rows": "rowwise_rep", "columns": "colwise", "narrow": "rowwise_rep", "wide": "rowwise"}
    for error, _ in ranks2.run(train_small, styles, plan, 4):
        assert error < 1e-9


def apart():
    return nn.Sequential(nn.Embedding(10, 16), Apart(), nn.Linear(16, 10))


def test_what_q_k_and_v_read_is_sent_once(ranks2):
    plan = {"1.[qkv]": "colwise", "1.out": "rowwise"}
    for error, sends in ranks2.run(train_small, apart, plan, 4):
        assert error < 1e-9
        assert sends == [("all_reduce", "forward"), ("all_reduce", "backward")]


def torch_styles(plan):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
    )

    return {
        "0": PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1)),
        "1.norm": SequenceParallel(),
        "1.[qkv]": ColwiseParallel(input_layouts=Shard(1)),
        "1.out": RowwiseParallel(output_layouts=Shard(1)),
        "2": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
    }


def train_with_torch_styles():
    return train_small(apart, torch_styles(None), 4)


def test_the_styles_of_torch_mean_what_they_mean_there(ranks2):
    for error, sends in ranks2.run(train_with_torch_styles):
        assert error < 1e-9
        assert [name for name, phase in sends if phase == "forward"] == [
            "all_gather_into_tensor", "reduce_scatter_tensor", "all_gather_into_tensor"
        ]  # fmt: skip


def go_on_with_dropout(plan):
    """Ranks are seeded apart, as `ranks.seed` does; copies must stay equal."""
    import torch.distributed as dist

    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 16), Apart(dropout=0.5), nn.Linear(16, 10))
    torch.manual_seed(dist.get_rank())
    batch = (torch.arange(24).reshape(4, 6) % 10, torch.arange(24).reshape(4, 6) % 7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = compile_step(model, optimizer, ids_and_targets, batch, strategy=TP(plan=plan))
    losses = [step(batch).item() for _ in range(3)]
    return losses, model[2].weight.tolist()


def test_dropout_on_whole_activations_is_the_same_on_all_ranks(ranks2):
    first, second = ranks2.run(go_on_with_dropout, {"1.[qkv]": "colwise", "1.out": "rowwise"})
    assert first == second
    assert len(set(first[0])) == 3


def go_on_from_plain_training(strategy):
    """Two plain steps, two split ones, two with another window and another sort of region; what the DTensors hold."""
    import torch.distributed as dist

    model = split_gpt().double()
    reference = copy.deepcopy(model)
    ours, plain = (torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (model, reference))
    batches = [*token_batches(), token_batches()[0]]
    for batch in batches:
        plain.zero_grad()
        next_token_loss(reference, batch).backward()
        plain.step()
    for batch in batches[:2]:
        ours.zero_grad()
        next_token_loss(model, batch).backward()
        ours.step()

    def mine(batch):
        data = dist.get_world_size() // (strategy.ranks or dist.get_world_size())
        group = dist.get_rank() // (strategy.ranks or dist.get_world_size())
        return tuple(part.chunk(data)[group] for part in batch)

    first = compile_step(model, ours, next_token_loss, mine(batches[0]), strategy=strategy)
    for batch in batches[2:4]:
        first(mine(batch))
    second = compile_step(
        model, ours, next_token_loss, tuple(p.chunk(2)[0] for p in mine(batches[0])), strategy=strategy, accumulation=2
    )
    for batch in batches[4:]:
        second(*zip(*(part.chunk(2) for part in mine(batch)), strict=True))
    whole = second.full_state_dict()
    seen = {n: p.full_tensor() if hasattr(p, "full_tensor") else p for n, p in model.named_parameters()}
    averages = [ours.state[p]["exp_avg"] for p in model.parameters()]
    averages = [a.full_tensor() if hasattr(a, "full_tensor") else a for a in averages]
    expected = [plain.state[p]["exp_avg"] for p in reference.parameters()]
    return (
        worst(second, reference),
        all(torch.equal(seen[name], whole[name]) for name in seen),
        max((a - e).abs().max().item() for a, e in zip(averages, expected, strict=True)),
    )


@pytest.mark.parametrize("name", ["tp vocabulary", "tp+sp"])
def test_parameters_and_state_go_in_and_come_out_whole(ranks2, name):
    for error, equal, state_error in ranks2.run(go_on_from_plain_training, TWO[name]):
        assert error < 1e-9
        assert equal
        assert state_error < 1e-12


def test_parameters_and_state_on_two_axes_go_in_and_come_out_whole(ranks4):
    for error, equal, state_error in ranks4.run(go_on_from_plain_training, FOUR["fsdp x tp"]):
        assert error < 1e-9
        assert equal
        assert state_error < 1e-12
