"""Two gathers in flight where the backend can have them, never where it cannot (gloo corrupts the heap)."""

import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from small_models import GPT, next_token_loss
from torch.distributed.device_mesh import init_device_mesh

from kit import progress
from kit._torch import collectives
from kit._torch.fake import as_fake, fake_mode_of
from kit._torch.fake_group import fake_world
from kit.step.compiled import compile_step
from kit.step.lower import draft
from kit.step.mesh import axes_of
from kit.step.passes.choice import Choice
from kit.step.recipe import recipe_of
from kit.step.strategy import FSDP, HSDP


def most_in_flight(module):
    """Most all-gathers started and not waited for, over the graph's order."""
    waits, most = set(), 0
    for node in module.graph.nodes:
        if node.target is collectives.ALL_GATHER:
            waits.update(user for user in node.users if user.target is collectives.WAIT)
        waits.discard(node)
        most = max(most, len(waits))
    return most


def gathers_of(strategy, loss=next_token_loss, steps=0):
    torch.manual_seed(0)
    model = GPT(width=96, context=64, layers=2)
    ids = torch.randint(0, 61, (8, 65))
    mesh = None
    if isinstance(strategy, HSDP):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    batch = (ids[:, :-1], ids[:, 1:])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = compile_step(model, optimizer, loss, batch, strategy=strategy, mesh=mesh)
    losses = [step(batch).item() for _ in range(steps)]
    return most_in_flight(step.stages[0].module), most_in_flight(step.module), losses


@pytest.mark.parametrize("reshard", [True, False])
def test_on_gloo_one_gather_is_in_flight(ranks2, reshard):
    for traced, run, _ in ranks2.run(gathers_of, FSDP(bucket_mb=0.05, reshard_after_forward=reshard)):
        assert traced == 1
        assert run == 1


def test_on_gloo_one_gather_is_in_flight_within_groups_of_a_mesh(ranks4):
    assert [run for _, run, _ in ranks4.run(gathers_of, HSDP(bucket_mb=0.05))] == [1] * 4


def loss_that_gathers_twice(model, batch):
    ids, targets = batch
    group, size = collectives.group_name(dist.group.WORLD), dist.get_world_size()
    started = [collectives.ALL_GATHER(part, size, group) for part in (ids, targets)]
    everybody, wanted = (collectives.WAIT(part) for part in started)
    return next_token_loss(model, (everybody, wanted))


def test_on_gloo_the_users_own_gathers_wait_for_one_another(ranks2):
    for traced, run, losses in ranks2.run(gathers_of, FSDP(), loss_that_gathers_twice, 2):
        assert traced == 2
        assert run == 1
        assert losses[1] < losses[0]


def test_hundreds_of_steps_with_small_buckets_leave_the_ranks_alive(ranks2):
    for *_, losses in ranks2.run(gathers_of, FSDP(bucket_mb=0.5), next_token_loss, 200, timeout=120):
        assert losses[-1] < losses[0] / 10


def lowered_for_a_backend_that_overlaps(strategy):
    """As `kit.plan` lowers it: for two ranks that do not exist, on a backend that is not gloo."""
    with fake_world(2):
        axes = axes_of(strategy, None, torch.device("cpu"))
        mode = fake_mode_of(())
        with mode:
            model = GPT()
            ids = as_fake(mode, torch.randint(0, 61, (4, 16)))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with progress.task("lower", total=4) as work:
                drafted = draft(
                    model, optimizer, next_token_loss, [(ids, ids)], strategy=strategy, axes=axes,
                    recipe=recipe_of(None, None, ()), work=work,
                )  # fmt: skip
                return drafted.lowered(Choice(bucket_mb=strategy.bucket_mb, check_values=False))


class OfEqualRanks(torch.fx.Interpreter):
    """Runs a step's graph as if all ranks held the same: what they would send each other is known."""

    def call_function(self, target, args, kwargs):
        if target is collectives.ALL_GATHER:
            return torch.cat([args[0]] * args[1])
        if target is collectives.REDUCE_SCATTER:
            return args[0].chunk(args[2])[0] * args[2]
        if target is collectives.ALL_REDUCE:
            return args[0] * 2
        return args[0] if target is collectives.WAIT else super().call_function(target, args, kwargs)


def outcome(module, inputs):
    own = [tensor.clone() for tensor in inputs]
    with torch.no_grad():
        return [*OfEqualRanks(module).run(*own), *own]  # parameters are changed in place


@pytest.mark.parametrize("reshard", [True, False])
def test_early_gathers_overlap_and_change_no_value(reshard):
    lowered = lowered_for_a_backend_that_overlaps(FSDP(bucket_mb=0.002, reshard_after_forward=reshard))
    before, after = (copy.copy(stage.module) for stage in lowered.stages[-3:-1])
    assert [stage.name for stage in lowered.stages[-2:]] == ["start gathers early", "wait before next gather"]
    assert not any(stage.failure for stage in lowered.stages)
    assert most_in_flight(lowered.module) == 2
    assert most_in_flight(before) == 1
    assert most_in_flight(after) == 2
    torch.manual_seed(1)
    values = [node.meta["val"] for node in after.graph.nodes if node.op == "placeholder"]
    random = partial(torch.randint, 0, 61)
    inputs = [torch.randn(v.shape) * 0.1 if v.is_floating_point() else random(v.shape) for v in values]
    for a, b in zip(outcome(before, inputs), outcome(after, inputs), strict=True):
        assert torch.equal(a, b)
