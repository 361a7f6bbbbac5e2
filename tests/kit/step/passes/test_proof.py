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


def compile_with_a_wrong_pass():
    from dataclasses import replace

    import kit.step.lower as lower

    right = lower.changes_of

    def doubles(module):
        node = next(n for n in module.graph.nodes if str(n.target) == "aten.gelu.default")
        with module.graph.inserting_after(node):
            twice = module.graph.call_function(torch.ops.aten.mul.Tensor, (node, 2.0))
        twice.meta = dict(node.meta)
        node.replace_all_uses_with(twice, delete_user_cb=lambda user: user is not twice)

    def with_wrong(*args, **options):
        prune, *others = right(*args, **options)
        return [replace(prune, name="double", run=doubles), *others]

    lower.changes_of = with_wrong
    try:
        torch.manual_seed(0)
        model = GPT()
        ids = torch.randint(0, 61, (4, 17), generator=torch.Generator().manual_seed(0))
        batch = ids[:, :-1], ids[:, 1:]
        expected = next_token_loss(model, batch).item()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = compile_step(model, optimizer, next_token_loss, batch, strategy=FSDP(bucket_mb=0.01))
    finally:
        lower.changes_of = right
    return step.plan, step(batch).item(), expected, [stage.name for stage in step.stages if stage.failure]


def test_a_pass_that_computes_something_else_is_left_out_and_named_and_the_step_trains_without_it(ranks2):
    for plan, loss, expected, failed in ranks2.run(compile_with_a_wrong_pass):
        assert failed == ["double"]
        assert plan.undone[0].startswith("pass 'double' was undone: on the same tensors result 0 differs by ")
        assert plan.passes == (
            "remove dead code", "hoist preparations", "bucket reductions", "bucket gathers", "reshard after forward",
            "start gathers early", "wait before next gather",
        )  # fmt: skip
        assert loss == pytest.approx(expected, rel=1e-5)


def compile_with_a_pass_that_fails_on_one_rank():
    import torch.distributed as dist

    import kit.step.lower as lower
    from kit.step.passes.choice import Change

    right = lower.changes_of

    def fails_on_rank_1(module):
        if dist.get_rank() == 1:
            raise RuntimeError("not here")

    lower.changes_of = lambda *args, **options: [
        Change(name="here only", run=fails_on_rank_1),
        *right(*args, **options),
    ]
    try:
        return undone_by_default(DDP(), {})
    finally:
        lower.changes_of = right


def test_a_pass_that_fails_on_one_rank_is_left_out_by_all(ranks2):
    assert ranks2.run(compile_with_a_pass_that_fails_on_one_rank) == [
        ("pass 'here only' was undone: it failed its proof on another rank",),
        ("pass 'here only' failed and was undone: RuntimeError: not here",),
    ]


def undone_by_default(strategy, options):
    model = GPT()
    ids = torch.randint(0, 61, (4, 17))
    step = compile_step(
        model, torch.optim.AdamW(model.parameters()), next_token_loss, (ids[:, :-1], ids[:, 1:]),
        strategy=strategy, check_values=True, **options,
    )  # fmt: skip
    return step.plan.undone


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        (DDP(bucket_mb=0.005), {"clip_norm": 1.0}),
        (FSDP(bucket_mb=0.01), {"accumulation": 2, "precision": "bf16"}),
        (FSDP(bucket_mb=None), {"checkpointing": "blocks.*"}),
    ],
    ids=str,
)
def test_the_kits_own_passes_hold_their_proof_on_real_tensors(ranks2, strategy, options):
    assert ranks2.run(undone_by_default, strategy, options) == [(), ()]
