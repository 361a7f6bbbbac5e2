"""A saved step goes on as if it had never stopped: same ranks bitwise, other ranks and strategies within 1e-9."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from small_models import ConvNet, Perceptron, next_token_loss
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import kit
from kit.ranks import launch
from kit.step.compiled import compile_step
from kit.step.strategy import DDP, FSDP, HSDP


class Dropped(nn.Module):
    """Draws random numbers, and has parameters with fewer rows than there are ranks."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 7), nn.Dropout(0.5), nn.Linear(7, 1)

    def forward(self, x):
        return self.last(self.drop(self.first(x)))


def part(tensor):
    return tensor.chunk(dist.get_world_size())[dist.get_rank()]


def numbers(*shape, seed=7):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def tokens():
    ids = torch.randint(0, 61, (8, 17), generator=torch.Generator().manual_seed(5))
    return part(ids[:, :-1]), part(ids[:, 1:])


def images():
    labels = torch.randint(0, 5, (8,), generator=torch.Generator().manual_seed(3))
    return part(numbers(8, 3, 6, 6)), part(labels)


def squares(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])


def classes(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


CASES = {
    "tied": (lambda: Perceptron(tied=True).double(), next_token_loss, tokens),
    "dropout": (lambda: Dropped().double(), squares, lambda: (part(numbers(8, 6)), part(numbers(8, 1, seed=8)))),
    "uneven": (
        lambda: nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 1)).double(),
        squares,
        lambda: (part(numbers(8, 6)), part(numbers(8, 1, seed=8))),
    ),
    "batchnorm": (lambda: ConvNet().double(), classes, images),
    "bf16": (lambda: Perceptron(), next_token_loss, tokens),
}
OPTIONS = {"bf16": {"precision": "bf16"}, "dropout": {"accumulation": 2}}


def build(case, strategy, *, seed, optimizer=torch.optim.AdamW, **settings):
    torch.manual_seed(seed + dist.get_rank() * (case == "dropout" and seed))
    make, loss, data = CASES[case]
    model = make()
    chosen = optimizer(model.parameters(), **({"lr": 1e-2} | settings))
    options = dict(OPTIONS.get(case, {}))
    if isinstance(strategy, HSDP):
        options["mesh"] = init_device_mesh(
            "cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard")
        )
    step = compile_step(model, chosen, loss, data(), strategy=strategy, **options)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(chosen, [2, 4], gamma=0.3)
    window = [data()] * options.get("accumulation", 1)
    torch.manual_seed(100 * seed + dist.get_rank())  # ranks draw their own masks

    def go(count):
        losses = []
        for _ in range(count):
            losses.append(step(*window).item())
            scheduler.step()
        return losses

    return step, scheduler, go


def started(case, strategy, path, **settings):
    """Three steps, a save, three more that nobody interrupts."""
    step, scheduler, go = build(case, strategy, seed=1, **settings)
    go(3)
    step.save(path, scheduler=scheduler)
    return go(3), step.full_state_dict(), step.full_optimizer_state_dict()["state"]


def resumed(case, strategy, path, **settings):
    """Another model, two steps further on, loads and goes on."""
    step, scheduler, go = build(case, strategy, seed=2, **settings)
    go(2)
    step.load(path, scheduler=scheduler)
    return go(3), step.full_state_dict(), step.full_optimizer_state_dict()["state"], step.steps_done


def flat(model_state, optimizer_state):
    return [*model_state.values(), *(value for state in optimizer_state.values() for value in state.values())]


@pytest.mark.parametrize(
    ("case", "strategy"),
    [("tied", FSDP(bucket_mb=0.01)), ("dropout", FSDP()), ("batchnorm", DDP()), ("bf16", FSDP())],
    ids=str,
)
def test_on_the_same_ranks_it_goes_on_bitwise(ranks2, tmp_path, case, strategy):
    whole = ranks2.run(started, case, strategy, tmp_path / "step")
    again = ranks2.run(resumed, case, strategy, tmp_path / "step")
    for (losses, model, state), (losses2, model2, state2, done) in zip(whole, again, strict=True):
        assert losses2 == losses
        assert len(set(losses)) > 1
        assert all(map(torch.equal, flat(model2, state2), flat(model, state)))
        assert done == 6


def test_batchnorm_statistics_are_each_ranks_own(ranks2, tmp_path):
    ranks2.run(started, "batchnorm", DDP(), tmp_path / "step")
    first, second = (
        state["norm1.running_mean"] for _, state, *_ in ranks2.run(resumed, "batchnorm", DDP(), tmp_path / "step")
    )
    assert not torch.equal(first, second)


@pytest.fixture(scope="module")
def rank1():
    with launch(1) as ranks:
        yield ranks


@pytest.mark.parametrize(
    ("before", "after", "optimizer"),
    [(DDP(), FSDP(), torch.optim.SGD), (FSDP(), DDP(), torch.optim.AdamW), (FSDP(), FSDP(), torch.optim.NAdam)],
    ids=str,
)
def test_on_one_or_four_ranks_and_another_strategy_it_goes_on(
    rank1, ranks2, ranks4, tmp_path, before, after, optimizer
):
    settings = {"optimizer": optimizer} | ({"momentum": 0.9} if optimizer is torch.optim.SGD else {})

    def there(ranks, function, strategy):
        return ranks.run(lambda: function("uneven", strategy, tmp_path / "step", **settings))[0]

    losses, *state = there(ranks2, started, before)
    for ranks in (rank1, ranks4):
        losses2, *state2, _ = there(ranks, resumed, after)
        assert losses2 == pytest.approx(losses, rel=1e-9)
        for value, value2 in zip(flat(*state), flat(*state2), strict=True):
            torch.testing.assert_close(value2, value, rtol=1e-9, atol=1e-9)


def test_hybrid_shards_and_parameters_of_fewer_rows_than_ranks(ranks4, ranks2, tmp_path):
    whole = ranks4.run(started, "dropout", HSDP(), tmp_path / "step")
    again = ranks4.run(resumed, "dropout", HSDP(), tmp_path / "step")
    for (losses, model, state), (losses2, model2, state2, _) in zip(whole, again, strict=True):
        assert losses2 == losses
        assert all(map(torch.equal, flat(model2, state2), flat(model, state)))
    before = ranks2.run(lambda: resumed("dropout", FSDP(), tmp_path / "step")[3])
    assert before == [6, 6]


def plain_start(path):
    from torch.distributed.checkpoint import save
    from torch.distributed.checkpoint.state_dict import get_state_dict

    torch.manual_seed(1)
    model = Perceptron(tied=True).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def go(count):
        losses = []
        for _ in range(count):
            optimizer.zero_grad()
            value = next_token_loss(model, tokens())
            value.backward()
            optimizer.step()
            losses.append(value.item())
        return losses

    go(3)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=path)
    return go(3), model.state_dict()


def loaded_from_plain(path):
    step = build("tied", FSDP(), seed=2)[0]
    step.load(path)
    for group in step._optimizer.param_groups:
        assert group["lr"] == 1e-2
    step._optimizer.param_groups[0].pop("initial_lr")  # the plain run had no schedule
    return [step(tokens()).item() for _ in range(3)], step.full_state_dict()


def test_a_plain_checkpoint_goes_on_in_a_sharded_step(rank1, ranks2, tmp_path):
    losses, state = rank1.run(plain_start, tmp_path / "plain")[0]
    for losses2, state2 in ranks2.run(loaded_from_plain, tmp_path / "plain"):
        assert losses2 == pytest.approx(losses, rel=1e-9)
        assert list(state2) == list(state)
        for name, value in state.items():
            torch.testing.assert_close(state2[name], value, rtol=1e-9, atol=1e-9)


def plain_end(path):
    from torch.distributed.checkpoint import load
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    torch.manual_seed(3)
    model = Perceptron(tied=True).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], gamma=0.3)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    scheduler.last_epoch = 3
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        value = next_token_loss(model, tokens())
        value.backward()
        optimizer.step()
        scheduler.step()
        losses.append(value.item())
    return losses


def test_a_sharded_step_goes_on_in_a_plain_script(rank1, ranks2, tmp_path):
    losses, _, _ = ranks2.run(started, "tied", FSDP(), tmp_path / "step")[0]
    assert rank1.run(plain_end, tmp_path / "step")[0] == pytest.approx(losses, rel=1e-9)


def test_from_the_notebook_it_is_saved_and_loaded_on_the_ranks(ranks2, tmp_path, monkeypatch):
    monkeypatch.setattr("kit.verbs.current", lambda: ranks2)
    ids = torch.randint(0, 61, (4, 17), generator=torch.Generator().manual_seed(5))
    batch = ids[:, :-1], ids[:, 1:]
    losses = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = Perceptron()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        step = kit.compile_step(model, optimizer, next_token_loss, batch, strategy="fsdp")
        if seed == 1:
            step(batch, batch)
            assert step.save(tmp_path / "step") == tmp_path / "step"
        else:
            step.load(tmp_path / "step")
        losses.append([step(batch, batch) for _ in range(2)])
    assert losses[0] == losses[1]
    model.load_state_dict(step.full_state_dict())
    optimizer.load_state_dict(step.full_optimizer_state_dict())
    next_token_loss(model, batch).backward()
    optimizer.step()
    assert step(batch, batch) > step(batch, batch) > 0
    torch.testing.assert_close(optimizer.state[model.head.weight]["step"], torch.tensor(4.0))
