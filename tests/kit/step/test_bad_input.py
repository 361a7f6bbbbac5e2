"""Each wrong use of a step is one clear error on every rank, and the next step works."""

import copy

import pytest
import torch
import torch.distributed as dist
from small_models import Perceptron, next_token_loss
from torch.distributed.device_mesh import init_device_mesh

from kit.step.compiled import compile_step
from kit.step.strategy import DDP


def batch(rows=4, length=16):
    ids = torch.randint(0, 61, (rows, length + 1), generator=torch.Generator().manual_seed(0))
    return ids[:, :-1], ids[:, 1:]


def said(call):
    """What a call raises, as `Type: text`."""
    try:
        call()
    except (ValueError, RuntimeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def build(loss=next_token_loss, example=None, model=None, optimizer=torch.optim.SGD, **options):
    torch.manual_seed(0)
    model = model or Perceptron()
    return compile_step(model, optimizer(model.parameters(), lr=0.1), loss, example or batch(), **options)


def same_on_all(ranks, function):
    first, second = ranks.run(function)
    assert first == second
    return first


def test_an_unknown_strategy_lists_the_known(ranks2):
    assert same_on_all(ranks2, lambda: said(lambda: build(strategy="zero3"))) == (
        "StrategyError: strategy 'zero3' is not known; expected one of 'ddp', 'fsdp', 'hsdp' or an object such as "
        "kit.FSDP(reshard_after_forward=False) or kit.TP(plan=...)"
    )


def test_an_unknown_axis_lists_the_axes_of_the_mesh(ranks2):
    def wrong():
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        return said(lambda: build(strategy=DDP(axis="tp"), mesh=mesh))

    assert same_on_all(ranks2, wrong) == "StrategyError: axis 'tp' is not of the mesh; it has 'dp'"


def test_a_batch_of_another_shape_is_named(ranks2):
    def wrong():
        step = build()
        text = said(lambda: step(batch(rows=3)))
        step(batch())  # and the step still works
        return text

    assert same_on_all(ranks2, wrong) == (
        "GuardError: batch leaf 0 is int64[3, 16] on cpu, the step was compiled for int64[4, 16] on cpu; pad or drop "
        "the batch to that shape, or compile a step for the new one"
    )


def test_another_number_of_micro_batches_is_named(ranks2):
    def wrong():
        return said(lambda: build(accumulation=2)(batch()))

    assert same_on_all(ranks2, wrong).startswith("GuardError: got 1 micro-batches, the step was compiled for 2;")


def test_a_changed_hyper_parameter_is_named(ranks2):
    def wrong():
        torch.manual_seed(0)
        model = Perceptron()
        optimizer = torch.optim.AdamW(model.parameters())
        step = compile_step(model, optimizer, next_token_loss, batch())
        optimizer.param_groups[0]["weight_decay"] = 0.5
        return said(lambda: step(batch()))

    assert "weight_decay went from 0.01 to 0.5; only lr may change" in same_on_all(ranks2, wrong)


def test_a_changed_mode_is_named(ranks2):
    def wrong():
        model = Perceptron()
        step = build(model=model)
        model.eval()
        return said(lambda: step(batch()))

    assert "train/eval mode changed" in same_on_all(ranks2, wrong)


def test_control_flow_on_values_names_the_line(ranks2):
    def branching(model, batch):
        value = next_token_loss(model, batch)
        if value > 3:
            value = value * 2
        return value

    text = same_on_all(ranks2, lambda: said(lambda: build(loss=branching)))
    assert text.startswith("TraceError: ")
    assert "if value > 3:" in text
    assert "is not one static graph; use torch.where" in text


def test_routing_that_decides_shapes_by_values_names_the_line(ranks2):
    class Routed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.expert = torch.nn.Linear(4, 2), torch.nn.Linear(4, 4)

        def forward(self, x):
            mine = x[self.router(x).argmax(-1) == 1]  # as many rows as the router sends there
            return self.expert(mine)

    def wrong():
        model = Routed()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return said(lambda: compile_step(model, optimizer, lambda m, x: m(x).square().mean(), torch.ones(4, 4)))

    text = same_on_all(ranks2, wrong)
    assert text.startswith("TraceError: ")
    assert "mine = x[self.router(x).argmax(-1) == 1]" in text
    assert "torch.where" in text


def test_an_in_place_all_reduce_inside_the_loss_is_refused(ranks2):
    def reducing(model, batch):
        value = next_token_loss(model, batch)
        dist.all_reduce(value)
        return value

    text = same_on_all(ranks2, lambda: said(lambda: build(loss=reducing)))
    assert "dist.all_reduce(value)" in text
    assert "an in-place collective leaves no wait in the graph" in text


def test_a_loss_that_is_no_scalar_is_named(ranks2):
    text = same_on_all(ranks2, lambda: said(lambda: build(loss=lambda model, batch: model(batch[0]))))
    assert "returned a tensor of shape [4, 16, 61]; expected a scalar mean" in text


def test_an_optimizer_of_another_model_is_refused(ranks2):
    def wrong():
        other = torch.optim.SGD(copy.deepcopy(Perceptron()).parameters(), lr=0.1)
        return said(lambda: compile_step(Perceptron(), other, next_token_loss, batch()))

    assert "parameters that are not of the model" in same_on_all(ranks2, wrong)


def test_an_unknown_executor_lists_the_known(ranks2):
    text = same_on_all(ranks2, lambda: said(lambda: build(executor="tvm")))
    assert (
        text
        == "ValueError: executor 'tvm' is not known; expected one of 'eager', 'aot_eager', 'inductor', 'cuda_graph'"
    )


def test_a_cuda_graph_of_a_cpu_model_is_refused(ranks2):
    text = same_on_all(ranks2, lambda: said(lambda: build(executor="cuda_graph")))
    assert text.startswith("ValueError: executor 'cuda_graph' replays a CUDA graph and the model is on the CPU")


def test_ranks_with_different_models_are_told_where_they_differ(ranks2):
    def wrong():
        length = 16 if dist.get_rank() == 0 else 15
        return said(lambda: build(example=batch(length=length)))

    text = same_on_all(ranks2, wrong)
    assert text.startswith("DisagreementError: ranks traced different graphs, first at node ")
    assert "[4, 16]" in text
    assert "[4, 15]" in text


def test_without_a_group_the_error_says_how_to_get_one():
    with pytest.raises(ValueError, match=r"no process group exists in this process; .* kit\.launch\(2\)"):
        build()
