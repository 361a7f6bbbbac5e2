"""What users do to their models: checkpoint by hand, freeze, tie in a teacher, use recurrent layers."""

import copy
import warnings

import torch
from small_models import GPT, next_token_loss
from torch import nn
from torch.utils.checkpoint import checkpoint

from kit.step.compiled import compile_step
from kit.step.strategy import DDP, FSDP

STRATEGIES = (DDP(), FSDP(bucket_mb=0.001))


def both_ways(make, loss, batches, strategy, *, parameters=lambda model: model.parameters()):
    """Largest difference of the losses, trained by a step and by plain torch on the same batch on each rank."""
    torch.manual_seed(0)
    ours = make()
    plain = copy.deepcopy(ours)
    optimizers = [torch.optim.SGD(parameters(model), lr=0.1) for model in (ours, plain)]
    step = compile_step(ours, optimizers[0], loss, batches[0], strategy=strategy)
    worst = 0.0
    for batch in batches:
        got = step(batch).item()
        optimizers[1].zero_grad()
        value = loss(plain, batch)
        value.backward()
        optimizers[1].step()
        worst = max(worst, abs(got - value.item()))
    return worst, step


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.block, self.last = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(checkpoint(self.block, self.first(x), use_reentrant=False))


def square(model, batch):
    return model(batch).pow(2).mean()


def data(count=6, *shape):
    return list(torch.randn(count, *(shape or (8, 4)), generator=torch.Generator().manual_seed(1)).double())


def test_a_model_that_checkpoints_itself_trains_as_in_plain_torch(ranks2):
    def train():
        return [both_ways(lambda: Checkpointed().double(), square, data(), s)[0] for s in STRATEGIES]

    for worst in ranks2.run(train):
        assert max(worst) < 1e-12


def test_training_a_part_of_the_parameters_leaves_the_others_and_sends_no_more(ranks2):
    def train():
        found = []
        for strategy in STRATEGIES:
            model = lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)).double()  # noqa: E731
            worst, step = both_ways(model, square, data(), strategy, parameters=lambda m: m[1].parameters())
            sent = sum(send.bytes_in for send in step.plan.sends if "gather" not in send.name)
            found.append((worst, sent, step.plan.unused))
        return found

    for (ddp, sent, unused), (fsdp, _, _) in ranks2.run(train):
        assert max(ddp, fsdp) < 1e-12
        assert sent == (8 + 1 + 1) * 8  # the second layer's gradients and the loss
        assert unused == ()


def test_a_teacher_outside_the_model_is_read_as_it_is_now(ranks2):
    def train():
        torch.manual_seed(3)
        teacher = nn.Linear(4, 1).double().requires_grad_(False)
        model = nn.Linear(4, 1).double()
        step = compile_step(
            model,
            torch.optim.SGD(model.parameters(), lr=0.0),
            lambda m, x: (m(x) - teacher(x)).pow(2).mean(),
            data()[0],
        )
        before = step(data()[0]).item()
        teacher.weight += 1
        return before, step(data()[0]).item(), (model(data()[0]) - teacher(data()[0])).pow(2).mean().item()

    for before, after, expected in ranks2.run(train):
        assert abs(after - expected) < 1e-12
        assert abs(after - before) > 0.1


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


def test_an_lstm_trains_as_in_plain_torch(ranks2):
    def train():
        batches = [batch.float() for batch in data(6, 4, 5, 4)]
        return [both_ways(Recurrent, square, batches, strategy)[0] for strategy in STRATEGIES]

    for worst in ranks2.run(train):
        assert max(worst) < 1e-5


def said(call):
    try:
        call()
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def test_a_parameter_frozen_after_compiling_is_named(ranks2):
    def wrong():
        model = GPT()
        ids = torch.zeros(2, 16, dtype=torch.long)
        step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), next_token_loss, (ids, ids))
        model.head.weight.requires_grad_(False)
        return said(lambda: step((ids, ids))), said(lambda: step(ids, ids))

    for frozen, two in ranks2.run(wrong):
        assert frozen.startswith("GuardError: requires_grad of head.weight changed since the step was compiled")
        assert "one batch is one argument: step((x, y))" in two


def test_a_gradient_hook_is_refused_by_name(ranks2):
    def wrong():
        model = nn.Linear(4, 1).double()
        model.weight.register_hook(lambda gradient: gradient * 0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return said(lambda: compile_step(model, optimizer, square, data()[0]))

    for text in ranks2.run(wrong):
        assert text.startswith("TraceError: weight has a gradient hook, which a static step would not call")


def test_a_schedule_after_a_step_warns_of_nothing(ranks2):
    def train():
        model = nn.Linear(4, 1).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        step = compile_step(model, optimizer, square, data()[0])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for batch in data():
                step(batch)
                schedule.step()
        return optimizer.param_groups[0]["lr"]

    assert ranks2.run(train) == [0.1 / 64] * 2
