"""The verbs from the notebook: sent to the ranks, and their records come back."""

import itertools

import pytest
import torch
from small_models import GPT, next_token_loss

import kit
from kit.graph.record import Graph
from kit.tuning.record import Setting
from kit.verbs import NoRanksError


@pytest.fixture(autouse=True)
def _of_this_test(request, monkeypatch):
    """The group that verbs find is the one of the test, not the latest of the session."""
    if "ranks2" in request.fixturenames:
        monkeypatch.setattr("kit.verbs.current", lambda: request.getfixturevalue("ranks2"))


def batch(rows=4):
    ids = torch.randint(0, 61, (rows, 17), generator=torch.Generator().manual_seed(0))
    return ids[:, :-1], ids[:, 1:]


def make_step():
    torch.manual_seed(0)
    model = GPT()
    return kit.compile_step(model, torch.optim.AdamW(model.parameters(), lr=1e-2), next_token_loss, batch())


def test_a_model_of_the_notebook_is_compiled_on_all_ranks(ranks2):
    torch.manual_seed(0)
    model = GPT()
    step = kit.compile_step(
        model, torch.optim.AdamW(model.parameters(), lr=1e-2), next_token_loss, batch(), strategy="fsdp"
    )
    losses = [step(batch(), batch()) for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert step.plan.world_size == 2
    assert isinstance(step.graph, Graph)
    assert step.graph.collective_count == 4
    with pytest.raises(ValueError, match="got 1 batches, expected one for each of 2 ranks"):
        step(batch())


def test_profile_takes_references_and_gives_one_timeline_of_all_ranks(ranks2):
    step = ranks2.hold(make_step)
    timeline = kit.profile(step, [batch()] * 3, warmup=1, active=2)
    assert timeline.ranks == (0, 1)


def test_profile_inside_the_ranks_gives_everybody_the_whole(ranks2):
    def inside():
        return kit.profile(make_step(), [batch()] * 3, warmup=1, active=2).ranks

    assert ranks2.run(inside) == [(0, 1), (0, 1)]


def build(setting):
    torch.manual_seed(0)
    model = GPT()
    if setting.micro_batch == 2:
        raise MemoryError("no room for 2")
    window = [batch(setting.micro_batch)] * setting.accumulation
    return kit.compile_step(
        model, torch.optim.SGD(model.parameters(), lr=0.1), next_token_loss, window
    ), itertools.repeat(window)


def test_tune_reports_a_setting_that_fails_and_goes_on(ranks2):
    report = kit.tune(build, global_batch=8, micro_batches=[1, 2, 4], steps=1)
    assert [m.setting for m in report.measurements] == [
        Setting(micro_batch=1, accumulation=4),
        Setting(micro_batch=2, accumulation=2),
        Setting(micro_batch=4, accumulation=1),
    ]
    assert [bool(m.failure) for m in report.measurements] == [False, True, False]
    assert "no room for 2" in report.measurements[1].failure


def test_capture_of_references_is_made_on_the_ranks(ranks2):
    model = ranks2.hold(GPT)
    example = ranks2.hold(lambda: (batch()[0],))
    graph = kit.capture(model, example).graph
    assert graph.collective_count == 0
    assert any("linear" in target for target in graph.targets)


def test_a_verb_without_ranks_says_how_to_start_some(monkeypatch):
    import kit.verbs

    monkeypatch.setattr(kit.verbs, "current", lambda: None)
    with pytest.raises(NoRanksError, match=r"kit\.tune needs ranks and there are none here; start some with"):
        kit.tune(build, global_batch=8)


def test_every_public_name_resolves():
    for name in kit.__all__:
        assert getattr(kit, name) is not None
    assert set(kit.__all__) <= set(dir(kit))


def test_an_unknown_name_lists_the_public_ones():
    with pytest.raises(AttributeError, match="module 'kit' has no attribute 'lunch'; it has DDP, FSDP"):
        kit.lunch  # noqa: B018


def test_two_graphs_are_compared_by_what_they_hold(ranks2):
    def stages():
        torch.manual_seed(0)
        model = GPT()
        step = kit.compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), next_token_loss, batch())
        return step.stages[1].graph, step.graph

    before, after = ranks2.run(stages)[0]
    found = {row.field: (row.left, row.right) for row in kit.compare(before, after)}
    assert found["all_reduce"] == (str(len(list(GPT().parameters())) + 1), "2")
    assert "<td" in kit.compare(before, after)._repr_html_()
    assert not kit.compare(before, before)


def test_a_list_item_is_a_window_of_micro_batches_when_profiled(ranks2):
    def make():
        torch.manual_seed(0)
        model = GPT()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return kit.compile_step(model, optimizer, next_token_loss, batch(2), accumulation=2)

    timeline = kit.profile(ranks2.hold(make), [[batch(2), batch(2)]] * 3, warmup=1, active=2)
    assert timeline.ranks == (0, 1)
    assert "compute" in str(kit.table(timeline))


def test_a_cut_of_a_captured_model_runs_as_the_model():
    torch.manual_seed(0)
    model = GPT(layers=3)
    ids = batch()[0]
    cut = kit.cut(kit.capture(model, (ids,)), parts=2)
    stages = kit.stages(cut, model, (ids,))
    assert torch.equal(stages(ids), model(ids))
    assert kit.draw(kit.capture(model, (ids,)), cut).svg.startswith("<svg")


def test_what_the_ranks_learned_comes_back_to_the_model_of_the_notebook(ranks2):
    torch.manual_seed(0)
    model = GPT()
    before = next_token_loss(model, batch()).item()
    step = kit.compile_step(
        model, torch.optim.AdamW(model.parameters(), lr=1e-2), next_token_loss, batch(), strategy="fsdp"
    )
    for _ in range(5):
        last = step(batch(), batch())
    model.load_state_dict(step.full_state_dict())
    assert next_token_loss(model, batch()).item() < last < before


@pytest.mark.parametrize("what", [kit.draw, kit.table])
def test_drawing_something_else_says_what_is_taken(what):
    with pytest.raises(TypeError, match=r"got a dict"):
        what({})
