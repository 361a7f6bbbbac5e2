"""A tensor-parallel module is used like the model, and refuses what would train something else."""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from against_one_process import whole
from small_models import next_token_loss
from split_models import Apart, FixedHeads, split_gpt
from torch import nn
from torch.distributed.checkpoint import load, save

from kit.ranks import RankError
from kit.step.static_module import compile_module
from kit.step.strategy import TP

PLAN = {"blocks.*.qkv": "colwise", "blocks.*.out": "rowwise", "blocks.*.up": "colwise", "blocks.*.down": "rowwise"}
STRATEGY = TP(plan=PLAN | {"head": "colwise_rep"}, packed={"blocks.*.qkv": 3})


def batch(seed=0):
    ids = torch.randint(0, 61, (4, 17), generator=torch.Generator().manual_seed(seed))
    return ids[:, :-1], ids[:, 1:].clone()


def largest_difference(ours, plain):
    pairs = zip(ours.parameters(), plain.parameters(), strict=True)
    return max((whole(p.grad) - q.grad).abs().max().item() for p, q in pairs)


def said(call):
    try:
        call()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def use_like_the_model():
    """Gradients that add up and are clipped, whole state in and out, evaluation, an input that wants a gradient."""
    model = split_gpt(layers=1).double()
    plain = copy.deepcopy(model)
    compiled = compile_module(model, strategy=STRATEGY, checkpointing="blocks.*")
    found = {"placements": {name: getattr(p, "placements", None) for name, p in compiled.named_parameters()}}
    compiled.eval()
    with torch.no_grad():
        found["evaluated"] = (compiled(batch()[0]) - plain(batch()[0])).abs().max().item()
    compiled.train()
    for net in (compiled, plain):
        for seed in range(2):
            next_token_loss(net, batch(seed)).backward()
    found["added"] = largest_difference(compiled, plain)
    norms = compiled.clip_grad_norm_(0.1), nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
    found["clipped"] = abs(norms[0] - norms[1]).item(), largest_difference(compiled, plain)
    other = {name: value + 1 for name, value in plain.state_dict().items()}
    compiled.load_state_dict(other)
    loaded = compiled.full_state_dict()
    found["loaded"] = list(loaded) == list(other) and all(torch.equal(loaded[name], other[name]) for name in other)
    late = next_token_loss(compiled, batch())
    with torch.no_grad():
        for parameter in compiled.parameters():
            parameter.add_(1.0)
    found["changed"] = said(late.backward)
    found["shape"] = said(lambda: compiled(batch()[0][:2]))
    found["repr"], found["sends"] = repr(compiled), [(s.name, s.phase, s.module) for s in compiled.plan.sends]
    return found


def test_it_is_used_like_any_module(ranks2):
    for found in ranks2.run(use_like_the_model):
        placements = found["placements"]
        assert str(placements["blocks.0.up.weight"]) == "(Shard(dim=0),)"
        assert str(placements["blocks.0.down.weight"]) == "(Shard(dim=1),)"
        assert "split_factor=3" in repr(placements["blocks.0.qkv.weight"]) or "3" in str(
            placements["blocks.0.qkv.bias"]
        )
        assert placements["blocks.0.down.bias"] is placements["norm.weight"] is None
        assert max(found["evaluated"], found["added"], *found["clipped"]) < 1e-12
        assert found["loaded"]
        assert "changed in place between forward and backward" in found["changed"]
        assert "GuardError: batch leaf 0 is int64[2, 16] on cpu, the module was compiled for" in found["shape"]
        assert "on 2 ranks, forward and backward of" in found["repr"]
        block = [("all_reduce", "forward", "blocks.0.out"), ("all_reduce", "forward", "blocks.0.down")]
        assert found["sends"][:3] == [*block, ("all_gather_into_tensor", "forward", "head")]


def refuse():
    """What is said of wrong plans, batches and losses; rank by rank."""
    rank = dist.get_rank()

    def compiled(model=None, strategy=STRATEGY):
        return compile_module(model or split_gpt(layers=1), strategy=strategy)

    def loss_of_other_targets(strategy):
        logits = compiled(strategy=strategy)(batch()[0])
        F.cross_entropy(logits.flatten(0, 1), batch(rank)[1].flatten()).backward()

    along = TP(plan=PLAN | {"blocks.0": "split_input"}, packed={"blocks.*.qkv": 3}, sequence_parallel=True)
    apart = nn.Sequential(nn.Embedding(10, 16), Apart(dropout=0.5), nn.Linear(16, 10))
    torch.manual_seed(rank)
    drawing = compiled(apart, TP(plan={"1.[qkv]": "colwise", "1.out": "rowwise"}))
    return {
        "heads": said(lambda: compiled(split_gpt(FixedHeads, layers=1))(batch()[0])),
        "parts": said(lambda: compiled(strategy=TP(plan={"head": "colwise"}))(batch()[0])),
        "no norms": said(lambda: compiled(strategy=along)(batch()[0])),
        "batch": said(lambda: compiled()(batch(rank)[0])),
        "targets": said(lambda: loss_of_other_targets(STRATEGY)),
        "not verified": said(lambda: loss_of_other_targets(TP(plan={"head": "colwise_rep"}, verify=False))),
        "pattern": said(lambda: compiled(strategy=TP(plan={"layers.*": "colwise"}))),
        "drawn": drawing(torch.arange(24).reshape(4, 6) % 10).tolist(),
    }


def test_what_would_train_something_else_is_refused(ranks2):
    first, second = ranks2.run(refuse)
    assert first == second
    assert "blocks.0.out gives other values split than whole (relative difference" in first["heads"]
    assert (
        "StrategyError: on the example batch the output is [4, 16, 31], of the whole model [4, 16, 62]: it is still "
        in (first["parts"])
    )
    assert "the output is [4, 8, 62], of the whole model [4, 16, 62]" in first["no norms"]
    assert "were given different batches (rank 1 of it differs" in first["batch"]
    assert "gave the module's output different gradients (rank 1 of it differs from rank 0 by" in first["targets"]
    assert first["not verified"] == "nothing was raised"
    assert "pattern 'layers.*' of the plan matches no module" in first["pattern"]


def save_and_load(path):
    """With torch's own checkpoints, from the state of one module into another of other values."""
    nets = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(2)]
    first, second = (compile_module(net, strategy=TP(plan={"0": "colwise", "2": "rowwise"})) for net in nets)
    save({"model": first.state_dict()}, checkpoint_id=path)
    load({"model": second.state_dict()}, checkpoint_id=path)
    given, taken = first.full_state_dict(), second.full_state_dict()
    return all(torch.equal(given[name], taken[name]) for name in given), len(given)


def test_checkpoints_of_torch_take_its_state(ranks2, tmp_path):
    assert ranks2.run(save_and_load, tmp_path) == [(True, 4)] * 2


TRAIN = """
import copy
model = split_gpt(layers=1).double()
plain = copy.deepcopy(model)
optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (model, plain)]
def train(nets):
    for net, optimizer in zip(nets, optimizers):
        next_token_loss(net, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
train([model, plain])
compiled = kit.compile(model, strategy=strategy, optimizer=optimizers[0])
train([compiled, plain])
"""


def test_an_optimizers_state_is_taken_along_and_kept_after_an_abort(ranks2):
    ranks2.push(split_gpt=split_gpt, next_token_loss=next_token_loss, batch=batch(), strategy=STRATEGY)
    ranks2.execute(TRAIN)
    with pytest.raises(RankError):
        ranks2.execute("if rank == 1: raise ValueError('broken')\ndist.all_reduce(torch.ones(1))")
    with pytest.raises(RankError, match=r"call kit\.compile\(model, strategy=\.\.\., optimizer=optimizer\) again"):
        ranks2.execute("compiled(batch[0])")
    ranks2.execute("train([kit.compile(model, strategy=strategy, optimizer=optimizers[0]), plain])")
    ranks2.execute("pairs = zip(model.parameters(), plain.parameters())")
    ranks2.execute("whole = [(p.full_tensor() if hasattr(p, 'full_tensor') else p, q) for p, q in pairs]")
    for worst in ranks2.execute("max((p - q).abs().max().item() for p, q in whole)"):
        assert worst < 1e-9
