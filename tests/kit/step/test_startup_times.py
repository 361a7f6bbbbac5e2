"""Ways to run a step, measured for real; the forms of a model, counted."""

import pytest
import torch
from small_models import ConvNet, Perceptron, next_token_loss

from kit.archive import load, save
from kit.display import table
from kit.step.compiled import compile_step
from kit.step.forms import representations
from kit.step.startup_times import QUICK, startup


def batch():
    ids = torch.randint(0, 61, (4, 17), generator=torch.Generator().manual_seed(0))
    return ids[:, :-1], ids[:, 1:]


def small():
    return Perceptron()


def measured(strategy, modes, **options):
    return startup(small, next_token_loss, batch(), strategy=strategy, modes=modes, steps=2, **options)


def test_every_way_is_measured_and_trains_the_same(ranks2):
    found = ranks2.run(measured, "ddp", QUICK)[0]
    assert [start.mode for start in found.starts] == list(QUICK)
    assert [start.why for start in found.starts] == [""] * 4
    for start in found.starts:
        assert 0 < start.steady_seconds < 5
        assert start.first_seconds > 0
        assert start.peak_bytes >= 0
    eager, lazy, whole, compiled = found.starts
    assert eager.loss == pytest.approx(whole.loss, rel=1e-5) == pytest.approx(compiled.loss, rel=1e-5)
    assert lazy.first_seconds > 3 * lazy.steady_seconds  # it compiles in its first step
    assert whole.build_seconds > 10 * whole.steady_seconds  # it traces when it is built


def test_fsdp2_is_the_peer_of_fsdp_and_what_cannot_be_had_says_why(ranks2, tmp_path):
    found = ranks2.run(measured, "fsdp", ("eager", "whole step, eager", "whole step, cuda_graph"))[0]
    eager, whole, graph = found.starts
    assert eager.loss == pytest.approx(whole.loss, rel=1e-5)
    assert graph.steady_seconds is None
    assert graph.why.startswith("ValueError: executor 'cuda_graph' replays a CUDA graph and the model is on the CPU")
    assert table(found).rows[2] == ("whole step, cuda_graph", "-", "-", "-", "-", "-")
    assert any(note.startswith("whole step, cuda_graph: ValueError") for note in table(found).notes)
    assert load(save(found, tmp_path / "startup.zip")) == found


def test_an_unknown_way_is_refused(ranks2):
    def wrong():
        with pytest.raises(ValueError, match=r"modes \['warp'\], steps 2; expected some of \['eager', "):
            measured("ddp", ("warp",))
        return True

    assert ranks2.run(wrong) == [True, True]


def test_peak_sees_what_was_taken_and_given_back():
    from kit.step.peak import NO_METHOD, Peak

    peak = Peak(torch.device("cpu"))
    if peak.method == NO_METHOD:
        pytest.skip("this system does not let a process reset its peak")
    held = torch.ones(64 << 20, dtype=torch.uint8)
    del held
    assert 60 << 20 < peak.bytes_taken() < 96 << 20


class Counted(torch.nn.Module):
    """Two operators whose values can be counted by hand."""

    def forward(self, x):
        return torch.relu(x + 1)


class OnShapes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x) if x.shape[0] > 1 else x


def mean_loss(model, x):
    return model(x).mean()


def test_counts_of_two_operators_are_those_made_by_hand():
    forms = {form.name: form for form in representations(Counted(), mean_loss, torch.zeros(3, 5)).forms}
    script, symbolic, dynamo = (forms[name] for name in ("TorchScript trace", "symbolic FX", "Dynamo graph"))
    assert (script.operators, symbolic.operators, dynamo.operators) == (2, 2, 2)
    assert script.bytes_made == symbolic.bytes_made == dynamo.bytes_made == 2 * 3 * 5 * 4
    assert (symbolic.nodes, dynamo.nodes) == (4, 4)  # with input and output
    assert script.why.startswith("deprecated")
    assert forms["joint graph (AOT)"].why.endswith("torch made no joint graph, as nothing in the model is trained")


def test_a_form_that_a_model_does_not_have_says_why_and_the_others_are_there():
    forms = {form.name: form for form in representations(OnShapes(), mean_loss, torch.zeros(2, 4)).forms}
    assert forms["symbolic FX"].nodes is None
    assert "TraceError" in forms["symbolic FX"].why
    assert forms["Dynamo graph"].nodes > 0
    assert forms["joint graph (AOT)"].nodes > forms["Dynamo graph"].nodes


def test_counting_leaves_parameters_and_buffers_as_they_were():
    model = ConvNet()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    representations(model, mean_loss, torch.randn(2, 3, 8, 8))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_whole_step_follows_as_traced_and_after_each_pass(ranks2):
    def both():
        model = Perceptron()
        step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), next_token_loss, batch())
        return representations(Perceptron(), next_token_loss, batch(), stages=step.stages), [
            len(s.graph) for s in step.stages
        ]

    found, nodes = ranks2.run(both)[0]
    assert [form.nodes for form in found.forms[4:]] == nodes
    assert [form.name for form in found.forms[4:6]] == ["whole step, as traced", "after: remove dead code"]
    assert found.forms[3].nodes < nodes[0]
