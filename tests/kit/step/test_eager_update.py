"""Optimizers whose own step does not trace: the graph gives the gradients, the optimizer takes its own step."""

import copy

import pytest
import torch
import torch.distributed as dist
from small_models import Perceptron, next_token_loss

from kit.step.compiled import compile_step
from kit.step.folder import SavedStepError
from kit.step.strategy import DDP, FSDP
from kit.step.table import table
from kit.step.update import OptimizerError


class Halving(torch.optim.AdamW):
    """A user's own optimizer."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= 0.5
        return super().step(closure)


class Hooked(torch.optim.Adam):
    """An optimizer of torch with a hook of the user."""

    def __init__(self, params, **settings):
        super().__init__(params, **settings)
        self.register_step_post_hook(lambda optimizer, *_: optimizer.param_groups[0].update(weight_decay=0.1))


WAYS = [("Adafactor", DDP()), ("SGD", FSDP()), ("Halving", FSDP()), ("Hooked", DDP())]
MAKERS = {
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2, eps=(1e-10, 1e-3)),
    "Hooked": lambda p: Hooked(p, lr=1e-3),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3),
    "Halving": lambda p: Halving(p, lr=1e-2),
}

REASONS = {
    "Adafactor": "step_float = step_t.item() reads a value",
    "SGD": "SGD with dampening 0.3 treats its first step differently",
    "Halving": "as a graph it gives other values than by itself",
    "Hooked": "has step hooks",
}


def batches():
    ids = torch.randint(0, 61, (5, 8, 17), generator=torch.Generator().manual_seed(1))
    return [(step[:, :-1], step[:, 1:].clone()) for step in ids]


def train(strategy, kind):
    """Worst relative differences from one process; the first two steps are eager already, so state is taken over."""
    torch.manual_seed(0)
    model = Perceptron().double()
    reference = copy.deepcopy(model)
    ours, plain = MAKERS[kind](model.parameters()), MAKERS[kind](reference.parameters())
    for net, optimizer in ((model, ours), (reference, plain)):
        for batch in batches()[:2]:
            optimizer.zero_grad()
            next_token_loss(net, batch).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = [[tuple(half.chunk(2)[i] for half in (p.chunk(size)[rank] for p in b)) for i in range(2)] for b in batches()]
    step = compile_step(model, ours, next_token_loss, mine[0][0], strategy=strategy, accumulation=2, clip_norm=0.5)
    worst = 0.0
    for batch, window in zip(batches()[2:], mine[2:], strict=True):
        with step.undone():
            step(*window)
        loss = step(*window)
        plain.zero_grad()
        expected = next_token_loss(reference, batch)
        expected.backward()
        norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        plain.step()
        worst = max(worst, abs(loss - expected).item(), abs(step.grad_norm - norm).item())
    trained = step.full_state_dict()
    parameters = max((trained[n] - p).abs().max().item() for n, p in reference.named_parameters())
    return worst, parameters, step.plan, repr(step)


def train_all():
    return [train(strategy, kind) for kind, strategy in WAYS]


def test_an_optimizer_without_a_static_update_trains_as_in_one_process_and_the_plan_says_so(ranks2):
    for found in ranks2.run(train_all):
        for (loss, parameters, plan, text), (kind, _) in zip(found, WAYS, strict=True):
            assert max(loss, parameters) < 1e-9
            assert plan.eager_optimizer == kind
            assert f"then {kind} outside the graph" in text
            note = next(note for note in table(plan).notes if note.startswith(f"{kind} takes its own step after"))
            assert REASONS[kind] in note


def small_step(optimizer, *, strategy="ddp", **options):
    """A step of a small layer, with its optimizer and batch."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    made = optimizer(model.parameters())
    batch = torch.ones(2, 4)
    step = compile_step(model, made, lambda m, b: m(b).square().mean(), batch, strategy=strategy, **options)
    return step, made, batch


def several_graphs():
    step, _, batch = small_step(MAKERS["SGD"], strategy="fsdp", variants=2, passes="measure")
    losses = [step(b) for b in (batch, batch[:1], batch, batch[:1])]
    torch.manual_seed(0)
    plain = torch.nn.Linear(4, 2)
    optimizer = MAKERS["SGD"](plain.parameters())
    for loss in losses:
        optimizer.zero_grad()
        expected = plain(batch).square().mean()
        torch.testing.assert_close(loss, expected.detach())
        expected.backward()
        optimizer.step()
    return [plan.eager_optimizer for plan in step.plans]


def test_several_measured_graphs_share_the_step_of_the_optimizer(ranks2):
    assert ranks2.run(several_graphs) == [["SGD", "SGD"]] * 2


def saved_and_resumed(folder):
    """Losses and parameters after a save that nobody interrupts, and after it was loaded into other, older training."""
    found = []
    for kind, strategy in WAYS:
        step, _, batch = small_step(MAKERS[kind], strategy=strategy)
        for _ in range(3):
            step(batch)
        step.save(folder / kind)
        whole = [float(step(batch)) for _ in range(3)], step.full_state_dict()
        again, optimizer, batch = small_step(MAKERS[kind], strategy=strategy)
        optimizer.param_groups[0]["lr"] = 1.0
        again(batch)
        again.load(folder / kind)
        done = again.steps_done
        rest = [float(again(batch)) for _ in range(3)], again.full_state_dict()
        fresh = small_step(MAKERS[kind], strategy=strategy)[0]  # its optimizer has no state yet
        fresh.load(folder / kind)
        rested = [float(fresh(batch)) for _ in range(3)], fresh.full_state_dict()
        found.append((whole, rest, rested, done))
    return found


def test_the_optimizers_own_state_is_saved_and_resumed_bitwise(ranks2, tmp_path):
    for found in ranks2.run(saved_and_resumed, tmp_path):
        for (losses, parameters), *others, done in found:
            assert done == 3
            assert len(set(losses)) > 1
            for losses2, parameters2 in others:
                assert losses2 == losses
                assert all(torch.equal(parameters[name], parameters2[name]) for name in parameters)


class Listing(Halving):
    """Keeps what no checkpoint can place."""

    def step(self, closure=None):
        super().step(closure)
        for state in self.state.values():
            state["history"] = [1]


def on_another_strategy(folder, *, save):
    step, _, batch = small_step(MAKERS["SGD"], strategy="fsdp" if save else "ddp")
    if save:
        step(batch)
        step.save(folder)
    else:
        step.load(folder)
    losses = [float(step(batch)) for _ in range(2)]
    step, _, batch = small_step(lambda p: Listing(p, lr=1e-2))
    step(batch)
    with pytest.raises(SavedStepError) as listed:
        step.save(folder / "never")
    return losses, str(listed.value)


def test_its_state_goes_from_shards_to_whole_and_what_cannot_be_placed_is_named(ranks2, tmp_path):
    (expected, _), _ = ranks2.run(lambda: on_another_strategy(tmp_path / "step", save=True))
    for losses, text in ranks2.run(lambda: on_another_strategy(tmp_path / "step", save=False)):
        assert losses == pytest.approx(expected, rel=1e-6)
        assert text.startswith("optimizer Listing keeps 'history' of weight as list; expected tensors")


def gone_on_from_plain_state():
    step, optimizer, batch = small_step(MAKERS["SGD"], strategy="fsdp")
    step(batch)
    parameters, state = step.full_state_dict(), step.full_optimizer_state_dict()
    expected = float(step(batch)), step.full_state_dict()
    step(batch)
    step._variants.first.guard.model.load_state_dict(parameters)
    optimizer.load_state_dict(state)
    loss, after = float(step(batch)), step.full_state_dict()
    return expected[0], loss, all(torch.equal(expected[1][name], after[name]) for name in after)


def test_whole_state_that_is_loaded_into_the_optimizer_goes_on_exactly(ranks2):
    for expected, loss, same in ranks2.run(gone_on_from_plain_state):
        assert loss == expected and same


class Replacing(torch.optim.Optimizer):
    """Puts new tensors in the place of its parameters."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            if float(parameter.grad.sum()) != 0:
                parameter.data = parameter - 0.1 * parameter.grad


class Elsewhere(torch.optim.Optimizer):
    """Changes the parameters by another optimizer."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        self.inner = torch.optim.SGD(self.param_groups[0]["params"], lr=0.1)

    def step(self, closure=None):
        self.inner.step()


def refused():
    step, _, batch = small_step(Replacing)
    with pytest.raises(OptimizerError) as replacing:
        step(batch)
    step, _, batch = small_step(Elsewhere)
    fell = float(step(batch)) > float(step(batch))
    with pytest.raises(OptimizerError) as elsewhere:
        small_step(Elsewhere, strategy="fsdp")
    step, _, batch = small_step(torch.optim.Adafactor, strategy="fsdp")
    with pytest.raises(OptimizerError) as factored:
        step(batch)
    return str(replacing.value), fell, str(elsewhere.value), str(factored.value)


def test_a_step_that_cannot_train_these_parameters_is_refused(ranks2):
    for replacing, fell, elsewhere, factored in ranks2.run(refused):
        assert replacing.startswith("optimizer Replacing gave weight other memory in its step")
        assert fell
        assert elsewhere == "optimizer Elsewhere has no static update: its step() alone changes no parameter"
        assert factored.startswith("the own step of optimizer Adafactor does not take sharded parameters (DTensors)")


def lbfgs():
    model = torch.nn.Linear(2, 1)
    try:
        compile_step(model, torch.optim.LBFGS(model.parameters()), lambda m, b: m(b).mean(), torch.ones(2, 2))
    except OptimizerError as error:
        return str(error)


def test_an_optimizer_that_calls_the_loss_itself_is_refused(ranks2):
    assert set(ranks2.run(lbfgs)) == {
        "optimizer LBFGS calls the loss itself several times a step, which a static step cannot do; expected one "
        "whose step() takes no closure, or use kit.compile(model) and write the closure around it"
    }
