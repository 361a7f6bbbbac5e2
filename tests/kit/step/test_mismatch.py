"""A saved step of something else is refused in words, on every rank, before a value changes."""

import re

import pytest
import torch
from torch import nn

import kit
from kit.ranks import RankError


def batch():
    return torch.ones(4, 5), torch.ones(4, 1)


def made(width=6, optimizer=torch.optim.AdamW, extra=0, groups=1, **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, width), *(nn.Linear(width, width) for _ in range(extra)), nn.Linear(width, 1))
    parts = list(model.parameters())
    chosen = optimizer([{"params": parts[i::groups]} for i in range(groups)], **{"lr": 0.1, **settings})
    loss = lambda m, b: nn.functional.mse_loss(m(b[0]), b[1])  # noqa: E731
    return kit.compile_step(model, chosen, loss, batch(), strategy="fsdp")


def saved_then_loaded(path, here, there=None, **options):
    first = made(**(there or {}))
    first(batch())
    first.save(path)
    second = made(**here)
    before = second.full_state_dict()
    try:
        second.load(path, **options)
    except Exception as error:
        after = second.full_state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
        second(batch())
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


@pytest.mark.parametrize(
    ("here", "there", "said"),
    [
        (
            {"width": 7},
            {},
            "saved from another model: 0.weight is [6, 5] there and [7, 5] here, 0.bias is [6] there and ",
        ),
        (
            {"extra": 1},
            {},
            "saved from another model: it lacks 2.weight, 2.bias; 1.weight is [1, 6] there and [6, 6] here",
        ),
        ({}, {"extra": 1}, "it has 2.weight, 2.bias, which this model has not"),
        (
            {"optimizer": torch.optim.SGD},
            {},
            'saved with AdamW, this step has SGD; build the step with AdamW, or load parts=("model",) to start the',
        ),
        (
            {"amsgrad": True},
            {},
            "the optimizer's state of 0.weight is exp_avg, exp_avg_sq, step there, AdamW keeps exp_avg, e",
        ),
        (
            {"weight_decay": 0.5},
            {},
            "group 0 has weight_decay 0.01 there and 0.5 here, which the graph holds as a constant",
        ),
        ({"groups": 2}, {}, "its optimizer has 1 parameter groups, this one 2; make the same groups"),
    ],
)
def test_another_model_or_optimizer_is_named(ranks2, tmp_path, here, there, said):
    first, second = ranks2.run(lambda: saved_then_loaded(tmp_path / "step", here, there))
    assert first == second
    assert first.startswith("SavedStepError: ")
    assert said in first


def test_the_model_alone_can_be_taken(ranks2, tmp_path):
    def fine_tune():
        return saved_then_loaded(tmp_path / "step", {"optimizer": torch.optim.SGD}, parts=("model",))

    assert ranks2.run(fine_tune) == ["nothing was raised"] * 2


def test_objects_that_were_not_saved_are_named(ranks2, tmp_path):
    def without_scheduler():
        schedule = torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD([nn.Parameter(torch.ones(1))]), float)
        return saved_then_loaded(tmp_path / "step", {}, scheduler=schedule)

    assert "nothing was saved for scheduler= (objects that are there: none)" in ranks2.run(without_scheduler)[0]
    with pytest.raises(RankError, match=r"TypeError: scheduler= got int; expected an object with state_dict and load"):
        ranks2.run(lambda: made().save(tmp_path / "step", scheduler=1))
    said = "parts is 'model', expected one or more of ('model', 'optimizer', 'random') in a tuple"
    with pytest.raises(RankError, match=re.escape(said)):
        ranks2.run(lambda: made().load(tmp_path / "step", parts="model"))


def test_a_folder_without_a_model_lists_what_it_has(ranks2, tmp_path):
    def foreign():
        from torch.distributed.checkpoint import save

        save({"net": {"weight": torch.ones(2)}}, checkpoint_id=tmp_path / "step")
        made().load(tmp_path / "step")

    with pytest.raises(RankError, match=r"it holds no model \(entries: net.weight\); expected entries model.NAME"):
        ranks2.run(foreign)
