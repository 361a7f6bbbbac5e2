"""Verdicts on two real ranks: what is counted inside graphs and outside, and what is said about it."""

from functools import partial

import pytest
import torch
from small_models import GPT, ConvNet, next_token_loss
from torch import nn

import kit
from kit.step.verdict_record import Compatibility, Verdict


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        hidden = self.first(x)
        if hidden.sum() > 0:
            hidden = hidden * 2
        return self.last(hidden)


def tokens():
    ids = torch.randint(0, 61, (4, 9), generator=torch.Generator().manual_seed(0))
    return ids[:, :-1], ids[:, 1:].clone()


def tiny():
    return GPT(layers=2, width=8)


def table_of_ways():
    return kit.compatibility(tiny, tokens(), next_token_loss)


def test_the_table_of_strategies_and_ways_is_measured_alike_on_all_ranks(ranks2):
    found, other = ranks2.run(table_of_ways)
    assert isinstance(found, Compatibility)
    assert [str(cell.verdict) for cell in found.cells] == [str(cell.verdict) for cell in other.cells]
    seen = {(cell.strategy, cell.way): cell.verdict for cell in found.cells}
    eager, whole, blocks = "eager", "whole-model compile", "per-block compile"

    def counts(strategy, way):
        v = seen[strategy, way]
        return v.forward_graphs, v.backward_graphs, len(v.breaks), v.collectives_inside, v.collectives_outside

    # One bucket of DDP; FSDP2 gathers root and two blocks, the blocks again, and reduces three times.
    assert [counts("DDP", way) for way in (eager, whole, blocks)] == [
        (0, 0, 0, 0, 1), (1, 1, 0, 0, 1), (2, 2, 0, 0, 1),
    ]  # fmt: skip
    assert [counts("FSDP2", way) for way in (eager, whole, blocks)] == [
        (0, 0, 0, 0, 8), (2, 2, 0, 0, 8), (2, 2, 0, 0, 8),
    ]  # fmt: skip
    assert [counts("kit DDP", way) for way in (eager, whole)] == [(1, 1, 0, 1, 0)] * 2
    assert [counts("kit FSDP", way) for way in (eager, whole)] == [(1, 1, 0, 3, 0)] * 2
    assert {key for key, v in seen.items() if v is not None and v.is_static} == {
        (strategy, way) for strategy in ("kit DDP", "kit FSDP") for way in (eager, whole)
    }
    assert str(found["FSDP2", whole]) == "2+2 graphs, 0 breaks; collectives 0 in, 8 out"
    text = str(kit.table(found))
    assert "not needed: the whole is one graph" in text
    assert "DDP reduces gradients in its reducer's hooks" in text
    assert "hooks that are hidden from Dynamo: 8 of 8 collectives started outside the graphs" in text
    assert found._repr_html_().startswith("<table>")


def verdicts_on_steps():
    found = []
    for optimizer, executor in (
        (torch.optim.AdamW, "eager"),
        (partial(torch.optim.SGD, momentum=0.9, dampening=0.5), "eager"),
        (torch.optim.SGD, "aot_eager"),
    ):
        model = tiny()
        step = kit.compile_step(
            model, optimizer(model.parameters(), lr=0.1), next_token_loss, tokens(), strategy="fsdp", executor=executor
        )
        before = step.full_state_dict()
        found.append(kit.explain(step, tokens()))
        after = step.full_state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
    return found


def test_a_step_is_one_graph_unless_its_optimizer_runs_outside(ranks2):
    adamw, dampened, sgd = ranks2.run(verdicts_on_steps)[0]
    assert adamw.is_static and sgd.is_static
    assert (adamw.forward_graphs, adamw.backward_graphs) == (1, 0)
    assert adamw.sentence.startswith(
        "CompiledStep (eager) is one static graph: forward, loss, backward, reduction and update run as one graph, "
        f"{adamw.collectives_inside} collectives inside"
    )
    assert adamw.collectives_inside >= 3 and adamw.collectives_outside == 0
    assert not dampened.is_static
    assert "the optimizer has no static update" in dampened.sentence
    assert dampened.operators_outside > 0


def test_a_branch_on_values_is_named_with_its_line():
    verdict = kit.explain(Branching(), torch.ones(2, 4))
    assert (verdict.is_static, verdict.forward_graphs, verdict.backward_graphs) == (False, 2, 2)
    (cut,) = verdict.breaks
    assert cut.reason == "Python branches on the value of a tensor"
    assert cut.source.endswith(": if hidden.sum() > 0:") and "test_verdict.py" in cut.source
    assert "Dynamo had to end a graph at 1 place, first at" in verdict.sentence
    assert (
        kit.explain(torch.compile(Branching(), fullgraph=True, backend="eager"), torch.ones(2, 4)).breaks
        == verdict.breaks
    )


def test_a_plain_model_is_one_graph_and_nothing_of_it_changes():
    torch.manual_seed(0)
    model = ConvNet()
    images, labels = torch.randn(4, 3, 6, 6), torch.randint(0, 5, (4,))

    def loss(net, batch):
        return nn.functional.cross_entropy(net(batch[0]), batch[1])

    loss(model, (images, labels)).backward()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    random = torch.random.get_rng_state()
    verdict = kit.explain(model, (images, labels), loss)
    assert verdict.is_static and verdict.operators_outside == 0
    assert verdict.sentence == (
        "ConvNet under torch.compile is one static graph: one forward and one backward graph; the model is not "
        "distributed, so it sends nothing."
    )
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(torch.equal(g, p.grad) for g, p in zip(gradients, model.parameters(), strict=True))
    assert torch.equal(random, torch.random.get_rng_state())


def test_a_verdict_is_saved_and_shown(tmp_path):
    verdict = kit.explain(Branching(), (torch.ones(2, 4),))
    assert kit.load(kit.save(verdict, tmp_path / "verdict.kit")) == verdict
    assert isinstance(verdict, Verdict)
    assert "break at" in verdict._repr_html_()
    with pytest.raises(TypeError, match="batch is a int"):
        kit.explain(Branching(), 3)


def no_blocks():
    try:
        kit.compatibility(Branching, torch.ones(2, 4))
    except ValueError as error:
        return str(error)


def test_a_model_without_blocks_is_asked_for_a_pattern(ranks2):
    assert set(ranks2.run(no_blocks)) == {
        "Branching has no ModuleList; pass blocks= a pattern of paths, its parts are first, last"
    }
