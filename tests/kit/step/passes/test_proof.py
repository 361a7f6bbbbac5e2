"""A pass that would change what is reduced is undone and named."""

import pytest
import torch
from small_models import GPT, next_token_loss

from kit._torch import collectives
from kit.step.compiled import compile_step
from kit.step.passes.proof import PassError, apply_pass, reduced_elements
from kit.step.strategy import DDP, FSDP


def traced(strategy):
    torch.manual_seed(0)
    model = GPT()
    ids = torch.randint(0, 61, (4, 17))
    step = compile_step(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        next_token_loss,
        (ids[:, :-1], ids[:, 1:]),
        strategy=strategy,
    )
    return step.stages[0].module, step.stages[-1].module


def drop_a_reduction(module):
    node = next(n for n in module.graph.nodes if n.target is collectives.WAIT and n.meta["val"].numel() > 2)
    node.replace_all_uses_with(node.args[0].args[0])


def try_to_drop():
    module, _ = traced(DDP())
    before = [str(node) for node in module.graph.nodes]
    try:
        apply_pass("drop", module, drop_a_reduction)
    except PassError as error:
        return str(error), before == [str(node) for node in module.graph.nodes]
    return "nothing was raised", False


def test_a_pass_that_drops_a_reduction_is_undone(ranks2):
    for text, untouched in ranks2.run(try_to_drop):
        assert text.startswith("pass 'drop' was undone: it reduces ")
        assert untouched


def try_to_break():
    def breaks(module):
        first = next(n for n in module.graph.nodes if n.op == "call_function")
        list(module.graph.nodes)[-1].append(first)  # now used before it is made

    module, _ = traced(DDP())
    try:
        apply_pass("break", module, breaks)
    except PassError as error:
        return str(error)
    return "nothing was raised"


def test_a_pass_that_leaves_a_malformed_graph_is_undone(ranks2):
    for text in ranks2.run(try_to_break):
        assert text.startswith("pass 'break' failed and was undone: RuntimeError")


def counts(strategy):
    first, last = traced(strategy)
    return reduced_elements(first), reduced_elements(last)


@pytest.mark.parametrize("strategy", [DDP(), DDP(bucket_mb=0.005), FSDP(bucket_mb=0.01)], ids=str)
def test_bucketing_reduces_every_element_once(ranks2, strategy):
    elements = sum(p.numel() for p in GPT().parameters())
    for before, after in ranks2.run(counts, strategy):
        assert before == after
        assert sum(n for (name, *_), n in after.items() if "default" in name) >= elements
