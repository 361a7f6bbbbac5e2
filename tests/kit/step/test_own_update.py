"""Optimizers traced by their own step(), against plain single-process training with the same optimizer."""

import copy
import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import (
    ASGD,
    LBFGS,
    SGD,
    Adadelta,
    Adagrad,
    Adamax,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
    SparseAdam,
)

from kit.ranks import RankError
from kit.step.compiled import compile_step
from kit.step.own_update import OptimizerError, own_step
from kit.step.update import rule_of


class Lion(Optimizer):
    """After Chen et al., arXiv 2302.06675, written as people write it: numbers, `.data`, state made in the step."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                update = state["exp_avg"].clone().mul_(beta1).add(p.grad, alpha=1 - beta1).sign_()
                p.add_(update, alpha=-group["lr"])
                state["exp_avg"].mul_(beta2).add_(p.grad, alpha=1 - beta2)


class Counted(Optimizer):
    """Counts its steps in a Python number and puts a new tensor in the place of the old."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(p.data))
                state["step"] += 1
                state["mean"] = 0.9 * state["mean"] + 0.1 * p.grad.data
                p.data = p.data - group["lr"] * state["mean"] / (1 - 0.9 ** state["step"])


class Heavy(SGD):
    """A subclass, as libraries make them."""

    def step(self, closure=None):
        return super().step(closure)


class Normed(Optimizer):
    """Scales by the norm of the whole parameter, as LARS does."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad * p.norm() / (p.grad.norm() + 1e-9), alpha=group["lr"])


class RowWise(Optimizer):
    """Adagrad with one number a row."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                seen = self.state[p].setdefault("sum", torch.zeros(p.shape[0], dtype=p.dtype, device=p.device))
                seen.add_(p.grad.reshape(p.shape[0], -1).square().mean(1))
                p.sub_(p.grad / (seen.sqrt() + 1e-6).reshape(-1, *[1] * (p.dim() - 1)), alpha=group["lr"])


MAKERS = {
    "rmsprop": lambda p: RMSprop(p, lr=0.01, momentum=0.9, centered=True, weight_decay=0.1),
    "adagrad": lambda p: Adagrad(p, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.3),
    "adadelta": lambda p: Adadelta(p, lr=1.0, weight_decay=0.1),
    "adamax": lambda p: Adamax(p, lr=0.01),
    "nadam": lambda p: NAdam(p, lr=0.01, decoupled_weight_decay=True, weight_decay=0.1),
    "radam": lambda p: RAdam(p, lr=0.01),
    "rprop": lambda p: Rprop(p, lr=0.01),
    "lion": lambda p: Lion(p, lr=0.01),
    "counted": lambda p: Counted(p, lr=0.1),
    "subclass": lambda p: Heavy(p, lr=0.1, momentum=0.9, nesterov=True),
    "rowwise": lambda p: RowWise(p, lr=0.1),
}


def model_and_batch(rows=slice(None)):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    x = torch.randn(8, 5, dtype=torch.float64)
    return model, (x[rows], x[rows, :3].square())


def loss(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def train(model, optimizer, step, count):
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    losses = []
    for _ in range(count):
        losses.append(float(step()))
        schedule.step()
    return losses


def plainly(model, optimizer, batch):
    def step():
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        return value

    return step


def worst_of_all(strategy, makers):
    worst = {}
    rank = dist.get_rank()
    for name, make in makers.items():
        reference, whole = model_and_batch()
        plain = make(reference.parameters())
        expected = train(reference, plain, plainly(reference, plain, whole), 8)
        model, mine = model_and_batch(slice(4 * rank, 4 * rank + 4))
        ours = make(model.parameters())
        step = compile_step(model, ours, loss, mine, strategy=strategy)
        got = train(model, ours, lambda step=step, mine=mine: step(mine), 8)
        state = step.full_state_dict()
        differences = [abs(a - b) / b for a, b in zip(got, expected, strict=True)]
        differences += [((state[n] - p).abs().max() / p.abs().max()).item() for n, p in reference.named_parameters()]
        worst[name] = max(differences)
        assert expected[-1] < expected[0]
    return worst


@pytest.mark.parametrize(("strategy", "names"), [("fsdp", tuple(MAKERS)), ("ddp", ("nadam", "counted"))])
def test_eight_steps_equal_one_process_to_1e_9(ranks2, strategy, names):
    for worst in ranks2.run(worst_of_all, strategy, {name: MAKERS[name] for name in names}):
        assert {name: value for name, value in worst.items() if value > 1e-9} == {}
        assert tuple(worst) == names


def test_asgd_equals_one_process_but_for_the_float32_rate_that_torch_keeps(ranks2):
    for worst in ranks2.run(worst_of_all, "fsdp", {"asgd": lambda p: ASGD(p, lr=0.05, lambd=0.01, t0=3)}):
        assert worst["asgd"] < 1e-6


def test_an_update_by_norms_goes_with_whole_parameters_and_not_with_shards(ranks2):
    for worst in ranks2.run(worst_of_all, "ddp", {"normed": lambda p: Normed(p, lr=0.01)}):
        assert worst["normed"] < 1e-9
    with pytest.raises(
        RankError, match="OptimizerError: optimizer Normed updates a row of a parameter by values of ot"
    ):
        ranks2.run(worst_of_all, "fsdp", {"normed": lambda p: Normed(p, lr=0.01)})


def there_and_back(make):
    """Plain for three steps, ours for three, plain for two."""
    reference, whole = model_and_batch()
    plain = make(reference.parameters())
    model, mine = model_and_batch(slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4))
    ours = make(model.parameters())
    step = compile_step(model, ours, loss, mine, strategy="fsdp")
    step(mine)
    for _ in range(3):
        plainly(reference, plain, whole)()
    model.load_state_dict(reference.state_dict())
    ours.load_state_dict(plain.state_dict())
    back = copy.deepcopy(reference)
    for _ in range(3):
        step(mine)
    back.load_state_dict(step.full_state_dict())
    its = make(back.parameters())
    its.load_state_dict(step.full_optimizer_state_dict())
    for _ in range(2):
        plainly(back, its, whole)()
    for _ in range(5):
        plainly(reference, plain, whole)()
    return max((a - b).abs().max().item() for a, b in zip(back.parameters(), reference.parameters(), strict=True))


@pytest.mark.parametrize("name", ["nadam", "adagrad", "rowwise"])
def test_state_goes_to_the_plain_optimizer_and_back(ranks2, name):
    assert max(ranks2.run(there_and_back, MAKERS[name])) < 1e-9


class Reading(Lion):
    """Branches on a value."""

    def step(self, closure=None):
        if self.param_groups[0]["params"][0].grad.norm() > 1e9:
            return
        super().step()


class Rooted(Counted):
    """Takes a Python root of its count."""

    def step(self):
        super().step()
        for p in self.param_groups[0]["params"]:
            p.data.mul_(math.sqrt(self.state[p]["step"]))


class Outside(Optimizer):
    """Counts where no state is."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.count = 0

    @torch.no_grad()
    def step(self):
        self.count += 1
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"] / self.count)


class Wrapped(Optimizer):
    """Steps another optimizer, whose parameters are not these."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.inner = AdamW(self.param_groups[0]["params"])

    def step(self):
        self.inner.step()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: Reading(p), r"test_own_update.py:\d+: if self.param_groups.* reads a value \(a branch, .item"),
        (lambda p: Rooted(p, lr=0.1), r"test_own_update.py:\d+: p.data.mul_\(math.sqrt.* reads a value"),
        (lambda p: Outside(p, lr=0.1), r"gives other values than by itself \(its first step differs from the later"),
        (lambda p: Heavy(p, lr=0.1, momentum=0.9, dampening=0.5), "its first step differs from the later ones"),
        (lambda p: LBFGS(p), r"its step\(\) raised TypeError: LBFGS.step\(\) missing 1 required positional argument"),
        (lambda p: SparseAdam(p), r"its step\(\) raised RuntimeError: SparseAdam does not support dense gradients"),
        (lambda p: Wrapped(p, lr=0.1), r"its step\(\) alone changes no parameter"),
    ],
)
def test_what_is_no_static_update_is_refused_by_name(make, said):
    model, _ = model_and_batch()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = make(list(model.parameters()))
    with pytest.raises(OptimizerError, match=rf"^optimizer {type(optimizer).__name__} has no static update: .*{said}"):
        own_step(optimizer, optimizer.param_groups[0])
    assert all(map(torch.equal, before, model.parameters()))


def test_step_hooks_are_refused_and_nothing_of_torch_stays_changed():
    model, _ = model_and_batch()
    optimizer = RMSprop(model.parameters())
    own_step(optimizer, optimizer.param_groups[0])
    assert RMSprop.step.hooked
    assert not torch.compiler.is_compiling()
    for kind in (RMSprop, AdamW):
        optimizer = kind(model.parameters())
        optimizer.register_step_post_hook(lambda *_: None)
        with pytest.raises(OptimizerError, match=f"optimizer {kind.__name__} has step hooks, which a static"):
            rule_of(optimizer, optimizer.param_groups[0])


def test_groups_of_equal_settings_are_proved_once_and_keep_their_rate():
    model, _ = model_and_batch()
    groups = [{"params": [p], "lr": 0.1 * (i + 1)} for i, p in enumerate(model.parameters())]
    optimizer = RMSprop([*groups, {"params": [nn.Parameter(torch.ones(3))], "alpha": 0.5}])
    rules = []
    for group in optimizer.param_groups:
        rules.append(rule_of(optimizer, group, rules))
    assert [rule.own.lr for rule in rules] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.01])
    assert rules[0].own.bare is rules[2].own.bare  # weights
    assert rules[1].own.bare is rules[3].own.bare  # biases
    assert rules[4].own.bare is not rules[1].own.bare  # another alpha
