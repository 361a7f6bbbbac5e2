"""The peak that a pass is held to, read off the FX graph, beside that of the priced record."""

import pytest
import torch
from small_models import GPT, MoE, expert_loss, next_token_loss

from kit.graph.liveness import peak_bytes
from kit.step.compiled import compile_step
from kit.step.passes.memory import Memory
from kit.step.strategy import DDP, FSDP


def peaks_of(make, loss, strategy, options):
    torch.manual_seed(0)
    model = make()
    ids = torch.randint(0, 61, (4, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    step = compile_step(model, optimizer, loss, (ids[:, :-1], ids[:, 1:].clone()), strategy=strategy, **options)
    most_sent = max(send.bytes_in for send in step.plan.sends)
    return [(Memory(stage.module).peak_bytes(), peak_bytes(stage.graph)) for stage in step.stages], most_sent


@pytest.mark.parametrize(
    ("make", "loss", "strategy", "options"),
    [
        (GPT, next_token_loss, FSDP(bucket_mb=0.01), {"checkpointing": "blocks.*"}),
        (MoE, expert_loss, DDP(), {"accumulation": 2}),
    ],
    ids=["fsdp", "ddp"],
)
def test_it_is_the_peak_of_the_record_and_what_is_being_sent(ranks2, make, loss, strategy, options):
    for peaks, most_sent in ranks2.run(peaks_of, make, loss, strategy, options):
        assert len(peaks) > 3
        assert peaks[0][0] == peaks[0][1] > 0  # as traced, what is sent is a gradient that lives on
        assert all(expected <= seen <= expected + most_sent for seen, expected in peaks)
