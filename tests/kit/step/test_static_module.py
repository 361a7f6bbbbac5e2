"""A model compiled into static forward and backward graphs against plain single-process training."""

import copy

import pytest
import torch
import torch.distributed as dist
from against_one_process import optimizer_of, relative, token_batches, whole
from small_models import GPT, ConvNet, Perceptron, next_token_loss
from torch.distributed.device_mesh import init_device_mesh

from kit.step.static_module import compile_module
from kit.step.strategy import DDP, FSDP, HSDP

STEPS = 5
STRATEGIES = [DDP(), DDP(bucket_mb=None), FSDP(bucket_mb=0.01), FSDP(reshard_after_forward=False)]


def mine(batch):
    return [part.chunk(dist.get_world_size())[dist.get_rank()] for part in batch]


def train_gpt(strategy, optimizer, dtype, tied, executor="eager", **options):
    """Largest relative differences of losses, gradients and parameters over the steps."""
    torch.manual_seed(0)
    return train(GPT(tied=tied).to(dtype), strategy, optimizer, executor, **options)


def train_perceptron(strategy, executor):
    torch.manual_seed(0)
    return train(Perceptron().double(), strategy, "adamw", executor)


def train(model, strategy, optimizer, executor, **options):
    reference = copy.deepcopy(model)
    compiled = compile_module(model, strategy=strategy, executor=executor, **options)
    ours, plain = optimizer_of(optimizer, compiled.parameters()), optimizer_of(optimizer, reference.parameters())
    losses, gradients = 0.0, 0.0
    for batch in token_batches():
        ours.zero_grad()
        loss = next_token_loss(compiled, mine(batch))
        loss.backward()
        plain.zero_grad()
        expected = next_token_loss(reference, batch)
        expected.backward()
        got = loss.detach().clone()
        dist.all_reduce(got)
        losses = max(losses, relative(got / dist.get_world_size(), expected.detach()))
        for (name, p), (other, q) in zip(compiled.named_parameters(), reference.named_parameters(), strict=True):
            assert name == other
            gradients = max(gradients, (whole(p.grad) - q.grad).abs().max().item() / whole(q.grad).abs().max().item())
        ours.step()
        plain.step()
    trained = compiled.full_state_dict()
    parameters = max(relative(trained[name], p.detach()) for name, p in reference.named_parameters())
    return losses, gradients, parameters


def train_both_optimizers(strategy, tied):
    return train_gpt(strategy, "sgd", torch.float32, tied), train_gpt(strategy, "adamw", torch.float64, tied)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_losses_gradients_and_parameters_equal_one_process(ranks2, strategy):
    tied = strategy.bucket_mb != 25.0  # uneven shards of 61 rows, used twice
    for sgd, adamw in ranks2.run(train_both_optimizers, strategy, tied):
        assert max(sgd[0], sgd[2]) < 1e-5
        assert sgd[1] < 1e-4  # a gradient of small elements that cancel in float32
        assert max(adamw) < 1e-9


def test_aot_eager_changes_no_result(ranks2):
    for found in ranks2.run(train_gpt, FSDP(), "adamw", torch.float64, True, "aot_eager"):
        assert max(found) < 1e-9


@pytest.mark.slow
def test_inductor_changes_no_result(ranks2):
    for found in ranks2.run(train_perceptron, DDP(), "inductor"):
        assert max(found) < 1e-9


def train_hybrid():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return train_gpt(HSDP(), "adamw", torch.float64, True, mesh=mesh, checkpointing="blocks.*")


def test_hybrid_sharding_with_checkpointed_blocks_equals_one_process(ranks4):
    for found in ranks4.run(train_hybrid):
        assert max(found) < 1e-9


def in_bfloat16():
    """Gradients in float32 of a forward in bfloat16, beside float32's; the parameters keep their format."""
    torch.manual_seed(0)
    model = GPT(layers=1)
    reference = copy.deepcopy(model)
    compiled = compile_module(model, strategy=FSDP(), precision="bf16")
    batch = mine(token_batches()[0])
    output = compiled(batch[0])
    torch.nn.functional.cross_entropy(output.float().flatten(0, 1), batch[1].flatten()).backward()
    next_token_loss(reference, token_batches()[0]).backward()
    worst = max(
        relative(whole(p.grad), q.grad) for p, q in zip(compiled.parameters(), reference.parameters(), strict=True)
    )
    return output.dtype, next(compiled.parameters()).grad.dtype, worst


def test_mixed_precision_computes_in_bfloat16_and_reduces_in_float32(ranks2):
    for output, gradient, worst in ranks2.run(in_bfloat16):
        assert (output, gradient) == (torch.bfloat16, torch.float32)
        assert 0 < worst < 0.1


def train_convnet(strategy):
    """BatchNorm sees shards: the reference computes each rank's statistics apart and averages gradients."""
    torch.manual_seed(0)
    model = ConvNet().double()
    references = [copy.deepcopy(model) for _ in range(dist.get_world_size())]
    images = torch.randn(STEPS, 8, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    labels = torch.randint(0, 5, (STEPS, 8), generator=torch.Generator().manual_seed(3))
    compiled = compile_module(model, strategy=strategy)
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    rank = dist.get_rank()
    for i in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(compiled(images[i].chunk(2)[rank]), labels[i].chunk(2)[rank]).backward()
        optimizer.step()
        for r, reference in enumerate(references):
            reference.zero_grad()
            torch.nn.functional.cross_entropy(reference(images[i].chunk(2)[r]), labels[i].chunk(2)[r]).backward()
        with torch.no_grad():
            for parameters in zip(*(reference.parameters() for reference in references), strict=True):
                gradient = sum(p.grad for p in parameters) / len(parameters)
                for p in parameters:
                    p -= 0.1 * gradient
    compiled.eval()
    references[rank].eval()
    with torch.no_grad():
        evaluated = (compiled(images[0]) - references[rank](images[0])).abs().max().item()
    trained = compiled.full_state_dict()
    names = references[rank].state_dict()
    return max((trained[name] - value).abs().max().item() for name, value in names.items()), evaluated


def train_convnet_both_ways():
    return [train_convnet(strategy) for strategy in (DDP(), FSDP())]


def test_batch_norm_statistics_are_each_ranks_own_in_training_and_evaluation(ranks2):
    for found in ranks2.run(train_convnet_both_ways):
        assert max(max(one) for one in found) < 1e-12


class Branches(torch.nn.Module):
    """Returns a dict with views, one tensor twice, an integer tensor and a number; draws random numbers."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.unused = torch.nn.Linear(4, 6), torch.nn.Linear(6, 3), torch.nn.Linear(2, 2)
        self.norm, self.drop = torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.5)

    def forward(self, x, *, scale=1.0):
        hidden = self.norm(self.first(x))
        out = self.last(self.drop(hidden.relu())) * scale
        return {
            "view": x[:, :2],
            "hidden": hidden,
            "same": hidden,
            "out": (out,),
            "ids": hidden.argmax(-1),
            "number": 3,
        }


def said(call):
    try:
        call()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def use_branches(strategy):
    """Gradients of a nested output beside plain autograd's, two forwards before their backwards, guards."""
    torch.manual_seed(0)
    model = Branches().double()
    plain = copy.deepcopy(model)
    compiled = compile_module(model, strategy=strategy)
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    found = {}
    errors = []
    for net, data in ((compiled, x), (plain, y)):
        torch.manual_seed(1)
        first, second = net(data, scale=2.0), net(data, scale=2.0)
        total = first["out"][0].sum() + first["view"].pow(2).sum() + second["same"].pow(3).t().sum()
        total.backward()
    for (_, p), (_, q) in zip(compiled.named_parameters(), plain.named_parameters(), strict=True):
        errors.append(0.0 if p.grad is q.grad is None else (whole(p.grad) - q.grad).abs().max().item())
    found["error"] = max(*errors, (x.grad - y.grad).abs().max().item())
    found["unused"] = compiled.plan.unused, compiled.get_parameter("unused.weight").grad
    found["form"] = first["hidden"] is first["same"], first["number"], second["ids"].requires_grad
    found["shape"] = said(lambda: compiled(x[:3], scale=2.0))
    found["constant"] = said(lambda: compiled(x, scale=3.0))
    found["wish"] = said(lambda: compiled(x.detach(), scale=2.0))
    late = compiled(x, scale=2.0)["out"][0].sum()
    with torch.no_grad():
        for parameter in compiled.parameters():
            parameter.add_(1.0)
    found["changed"] = said(late.backward)
    compiled.eval()
    found["mode"] = said(lambda: compiled(x, scale=2.0))
    with torch.no_grad():
        found["evaluated"] = tuple(compiled(torch.randn(7, 4).double())["out"][0].shape)
        found["evaluated again"] = said(lambda: compiled(torch.randn(8, 4).double()))
    found["convert"] = said(compiled.half)
    return found


@pytest.mark.parametrize("strategy", [DDP(), FSDP()], ids=str)
def test_it_is_used_like_any_module_and_refuses_what_it_was_not_traced_for(ranks2, strategy):
    for found in ranks2.run(use_branches, strategy):
        assert found["error"] < 1e-12
        assert found["unused"] == (("unused.weight", "unused.bias"), None)
        assert found["form"] == (True, 3, False)
        assert found["shape"] == (
            "GuardError: batch leaf 0 is float64[3, 4] on cpu, the module was compiled for float64[5, 4] on cpu; pad "
            "or drop the batch to that shape, or compile with variants=2 to keep both"
        )
        assert "batch leaf 1 is 3.0, the module was compiled for 2.0" in found["constant"]
        assert "requires_grad of tensor 0 of the batch went from True to False" in found["wish"]
        assert "changed in place between" in found["changed"] or "modified by an inplace" in found["changed"]
        assert "train/eval mode changed since the module was compiled" in found["mode"]
        assert found["evaluated"] == (7, 3)
        assert "float64[8, 4] on cpu, the module was compiled for float64[7, 4]" in found["evaluated again"]
        assert "move or convert the model before kit.compile" in found["convert"]


def optimizer_made_before():
    ids = torch.zeros(2, 8, dtype=torch.long)
    model = GPT(layers=1)
    early = torch.optim.SGD(model.parameters(), lr=0.1)
    refused = said(lambda: compile_module(model, strategy="fsdp")(ids))
    model = GPT(layers=1)
    plain = copy.deepcopy(model)
    early, other = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, plain))
    model(ids).sum().backward()
    early.step()  # momentum is there, whole
    early.zero_grad()
    compiled = compile_module(model, strategy="fsdp", optimizer=early)
    compiled(ids).sum().backward()
    early.step()
    for _ in range(2):
        other.zero_grad()
        plain(ids).sum().backward()
        other.step()
    return refused, relative(compiled.full_state_dict()["head.weight"], plain.head.weight)


def test_an_optimizer_that_holds_the_parameters_of_before_is_refused_or_taken_along(ranks2):
    for refused, error in ranks2.run(optimizer_made_before):
        assert refused == (
            "StrategyError: an optimizer (SGD) holds 17 parameters that the model had before kit.compile sharded it; "
            "pass it with kit.compile(..., optimizer=optimizer), or make it from the parameters() of the compiled "
            "module"
        )
        assert error < 1e-5


def graphs_and_plan():
    ids = torch.zeros(2, 8, dtype=torch.long)
    compiled = compile_module(GPT(), ((ids,), {}), strategy=FSDP(bucket_mb=0.001), variants=2)
    compiled(ids[:1])  # a second form of call
    sends = {phase: {s.name for s in compiled.plan.sends if s.phase == phase} for phase in ("forward", "backward")}
    return repr(compiled), compiled.forward_graph, compiled.backward_graph, sends, compiled._repr_html_()


def test_forward_and_backward_are_graphs_with_their_collectives(ranks2):
    text, forward, backward, sends, page = ranks2.run(graphs_and_plan)[0]
    assert text.startswith("DistributedGraphModule(GPT: FSDP(")
    assert sends == {
        "forward": {"all_gather_into_tensor"}, "backward": {"all_gather_into_tensor", "reduce_scatter_tensor"}
    }  # fmt: skip
    assert (forward.name, backward.name) == ("forward", "backward")
    assert "tensor" in page and page.startswith("<table>")
    assert {"blocks.0.qkv.weight", "batch:0"} <= set(forward.parameter)
