"""What fits by shape and means something else is found out on the example batch, before training."""

import pytest
import torch
import torch.nn.functional as F
from small_models import Block, next_token_loss
from split_models import FixedHeads, split_gpt
from torch import nn

from kit.step.compiled import compile_step
from kit.step.planning import plan as plan_without_ranks
from kit.step.strategy import DDP, FSDP, TP, StrategyError

PLAN = {"blocks.*.qkv": "colwise", "blocks.*.out": "rowwise", "blocks.*.up": "colwise", "blocks.*.down": "rowwise"}
PACKED = {"blocks.*.qkv": 3}
SEQUENCE = PLAN | {"blocks.0": "split_input", "head": "colwise_rep"}
NORMS = {"blocks.*.norm1": "sequence", "blocks.*.norm2": "sequence", "norm": "sequence"}


def batch(seed=0, length=17):
    ids = torch.randint(0, 61, (4, length), generator=torch.Generator().manual_seed(seed))
    return ids[:, :-1], ids[:, 1:].clone()


def said(model, strategy, *, example=None, loss=next_token_loss, options=None, trained=1):
    """What compiling raises; or that it trains."""
    try:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        example = batch() if example is None else example
        step = compile_step(model, optimizer, loss, example, strategy=strategy, **(options or {}))
        for _ in range(trained):
            step(example)
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "it trains"


def plans_that_compute_something_else():
    import torch.distributed as dist

    def functional_head(model, batch):
        x = model.norm(model.blocks[0](model.token(batch[0])))
        return F.cross_entropy(F.linear(x, model.token.weight).flatten(0, 1), batch[1].flatten() % 31)

    tp = TP(plan=PLAN, packed=PACKED)
    with_spare = split_gpt()
    with_spare.spare = nn.Linear(16, 16)
    return {
        "heads": said(split_gpt(FixedHeads), tp),
        "not packed": said(split_gpt(), TP(plan=PLAN)),
        "no norms": said(split_gpt(), TP(plan=SEQUENCE, packed=PACKED, sequence_parallel=True)),
        "no rowwise": said(split_gpt(), TP(plan={"blocks.*.up": "colwise"})),
        "shape": said(split_gpt(Block), tp),
        "functional head": said(
            split_gpt(layers=1), TP(plan=PLAN | {"token": "rowwise_rep"}, packed=PACKED), loss=functional_head
        ),
        "other batch": said(split_gpt(), tp, example=batch(seed=dist.get_rank())),
        "odd length": said(
            split_gpt(), TP(plan=SEQUENCE | NORMS, packed=PACKED, sequence_parallel=True), example=batch(length=16)
        ),
        "bf16": said(split_gpt(), tp, options={"precision": "bf16"}),
        "bf16 of floats": said(
            nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8)), TP(plan={"0": "colwise", "1": "rowwise"}),
            example=torch.ones(4, 8), loss=lambda model, x: model(x).float().square().mean(),
            options={"precision": "bf16"},
        ),
        "not verified": said(split_gpt(FixedHeads), TP(plan=PLAN, packed=PACKED, verify=False)),
        "unused": said(with_spare, TP(plan=PLAN | {"spare": "colwise"}, packed=PACKED)),
        "needs a mesh": said(split_gpt(), TP(plan=PLAN, packed=PACKED, data=FSDP())),
        "does not divide": said(split_gpt(), TP(plan=PLAN, packed=PACKED, data=DDP(), ranks=3)),
    }  # fmt: skip


def test_what_would_train_another_model_is_refused_with_the_module(ranks2):
    for found in ranks2.run(plans_that_compute_something_else):
        assert found["heads"].startswith(
            "StrategyError: on the example batch blocks.0.out gives other values split than whole (relative difference "
        )
        assert "write -1 there and give head_dim" in found["heads"]
        assert found["not packed"].startswith("StrategyError: on the example batch blocks.0.out gives other values")
        assert found["no norms"].startswith("StrategyError: on the example batch the gradient of blocks.0.norm1.weight")
        assert "blocks.0.down: its input is" not in found["no rowwise"]
        assert "self.down(F.gelu(self.up(self.norm2(x))))" in found["no rowwise"]
        assert "shape '[4, 16, 16]' is invalid for input of size 512. Under tensor parallelism" in found["shape"]
        assert "(module blocks.0)" in found["shape"]
        assert found["functional head"].startswith("StrategyError: on the example batch ")
        assert found["other batch"].startswith("StrategyError: ranks of one tensor-parallel group were given different")
        assert "blocks.0: dim 1 of [4, 15, 16] does not divide over 2 ranks" in found["odd length"]
        assert found["bf16"] == found["bf16 of floats"] == "it trains"
        assert found["not verified"] == "it trains"
        assert "StrategyError: spare never ran: the step does not call" in found["unused"]
        assert "say TP(ranks=...), how many ranks share a split model, or pass mesh=" in found["needs a mesh"]
        assert "TP(ranks=3) on 2 ranks: expected a number that divides 2" in found["does not divide"]


def placed_twice():
    model = split_gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compile_step(model, optimizer, next_token_loss, batch(), strategy=TP(plan=PLAN, packed=PACKED))
    other = {key: style for key, style in PLAN.items() if key not in ("blocks.*.qkv", "blocks.*.out")}
    return said(model, TP(plan=other)), said(model, DDP()), said(
        model, TP(plan=SEQUENCE | NORMS | {"head": "gather_output"}, packed=PACKED, sequence_parallel=True)
    )  # fmt: skip


def test_a_placed_model_is_split_one_way_only(ranks2):
    for other, data, sequence in ranks2.run(placed_twice):
        assert "already placed by TP and DDP over 2 ranks, with 6 split parameters" in other
        assert "already placed by TP and DDP over 2 ranks, with 6 split parameters; DDP over 2 ranks" in data
        assert "head" in sequence or sequence == "it trains"


MESHES = """
import small_models
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
def compiled(strategy, mesh):
    model = split_gpt()
    try:
        step = kit.compile_step(
            model, torch.optim.SGD(model.parameters(), lr=0.1), next_token_loss, batch, strategy=strategy, mesh=mesh)
        return step(batch).item()
    except ValueError as error:
        return str(error)
"""


def test_a_mesh_of_the_user_names_the_axes(ranks2):
    ranks2.push(split_gpt=split_gpt, next_token_loss=next_token_loss, batch=batch(), PLAN=PLAN, PACKED=PACKED)
    ranks2.execute(MESHES.replace("import small_models\n", ""))
    for call, words in (
        ("kit.TP(plan=PLAN, packed=PACKED)", "the mesh has 2 axes ('dp', 'tp') and TP uses 'tp' only"),
        ("kit.TP(plan=PLAN, packed=PACKED, axis='model', data=kit.DDP())", "axis 'model' is not of the mesh"),
    ):
        assert words in ranks2.execute(f"compiled({call}, mesh)")[0]
    one, two = ranks2.execute("compiled(kit.TP(plan=PLAN, packed=PACKED, data=kit.FSDP(axis='dp')), mesh)")
    assert one == two
    assert isinstance(one, float)


def test_a_split_step_goes_on_in_the_group_after_an_abort(ranks2):
    from kit.ranks import RankError

    ranks2.push(split_gpt=split_gpt, next_token_loss=next_token_loss, batch=batch(), PLAN=PLAN, PACKED=PACKED)
    ranks2.execute("""
model = split_gpt()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
strategy = kit.TP(plan=PLAN, packed=PACKED, ranks=1, data=kit.FSDP())
step = kit.compile_step(model, optimizer, next_token_loss, batch, strategy=strategy)
before = [step(batch).item() for _ in range(2)]
""")
    with pytest.raises(RankError):
        ranks2.execute("if rank == 1: raise ValueError('broken')\ndist.all_reduce(torch.ones(1))")
    ranks2.execute("kit.compile_step(model, optimizer, next_token_loss, batch, strategy=strategy)(batch)")
    ranks2.execute("whole = model.blocks[0].qkv.weight.full_tensor().shape")
    assert ranks2.pull("whole") == [(48, 16)] * 2


def plan_of(strategy, **options):
    example = (torch.zeros(4, 16, dtype=torch.long),) * 2
    return plan_without_ranks(lambda: split_gpt(layers=2), next_token_loss, example, strategy=strategy, **options)


def test_a_block_sends_two_sums_forward_and_two_backward():
    sends = plan_of(TP(plan=PLAN, packed=PACKED), world=2).sends
    assert [(s.name, s.phase, s.module) for s in sends] == [
        ("all_reduce", "forward", "blocks.0.out"), ("all_reduce", "forward", "blocks.0.down"),
        ("all_reduce", "forward", "blocks.1.out"), ("all_reduce", "forward", "blocks.1.down"),
        ("all_reduce", "backward", "blocks.1.up"), ("all_reduce", "backward", "blocks.1.qkv"),
        ("all_reduce", "backward", "blocks.0.up"), ("all_reduce", "backward", "blocks.0.qkv"),
    ]  # fmt: skip
    assert all("split_models.py" in send.source for send in sends)


def test_a_sequence_parallel_block_gathers_and_scatters_instead():
    sends = plan_of(TP(plan=SEQUENCE | NORMS, packed=PACKED, sequence_parallel=True), world=2).sends
    inside = [s for s in sends if s.module in ("blocks.1.qkv", "blocks.1.out", "blocks.1.up", "blocks.1.down")]
    assert [(s.name.split("_")[1], s.phase, s.module) for s in inside] == [
        ("gather", "forward", "blocks.1.qkv"), ("scatter", "forward", "blocks.1.out"),
        ("gather", "forward", "blocks.1.up"), ("scatter", "forward", "blocks.1.down"),
        ("gather", "backward", "blocks.1.down"), ("scatter", "backward", "blocks.1.up"),
        ("gather", "backward", "blocks.1.out"), ("scatter", "backward", "blocks.1.qkv"),
    ]  # fmt: skip
    assert len([s for s in sends if s.name == "all_reduce"]) == 1  # gradients of the norms and biases, one bucket


def test_graphs_of_ranks_differ_in_nothing_that_is_sent_or_named():
    vocabulary = PLAN | {"token": "rowwise_rep", "head": "colwise_rep"}
    first, last = (plan_of(TP(plan=vocabulary, packed=PACKED), world=2, rank=rank) for rank in (0, 1))
    assert (first.sends, first.node_count) == (last.sends, last.node_count)


def test_a_plan_splits_modules_over_the_ranks_of_a_node():
    planned = plan_of(TP(plan={"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}, data=FSDP()), world=1024)
    assert planned.world_size == 1024
    sums = [s for s in planned.sends if s.name == "all_reduce" and s.phase == "forward"]
    assert len(sums) == 2
    assert planned.estimate.communication_seconds > 0
    apart = plan_of(TP(plan={"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}, data=FSDP(), ranks=2), world=1024)
    assert apart.parameter_bytes >= planned.parameter_bytes
    with pytest.raises(StrategyError, match=r"TP\(ranks=5\) on 1024 ranks: expected a number that divides 1024"):
        plan_of(TP(plan=PLAN, packed=PACKED, data=FSDP(), ranks=5), world=1024)
