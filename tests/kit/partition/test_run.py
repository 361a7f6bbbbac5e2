"""The stages of a cut, run one after the other, against the uncut module: equal to the last bit."""

import copy
import warnings

import pytest
import torch
from torch import fx, nn

from kit.graph.from_fx import graph_of
from kit.partition.cut import cut
from kit.partition.record import CutError
from kit.partition.run import stages


def exported(model: nn.Module, *args, **kwargs) -> fx.GraphModule:
    gm = torch.export.export(model, args, kwargs).module(check_guards=False)
    assert isinstance(gm, fx.GraphModule)
    return gm


def copied(gm: fx.GraphModule) -> fx.GraphModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 copies its own tree specs by a deprecated way
        return copy.deepcopy(gm)


def train_once(module: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    out = module(batch)
    out.square().mean().backward()
    return out.detach()


def assert_same_training(gm: fx.GraphModule, batch: torch.Tensor, parts: int) -> nn.Module:
    """Train the uncut module and the stages of a copy once; everything must be equal, bit by bit."""
    other = copied(gm)
    staged = stages(cut(graph_of(other, name="model"), parts, eps=0.2), other)
    assert torch.equal(train_once(gm, batch), train_once(staged, batch))
    gradients = {name: parameter.grad for name, parameter in other.named_parameters()}
    for name, parameter in gm.named_parameters():
        assert gradients[name] is not None, name
        assert torch.equal(parameter.grad, gradients[name]), name
    buffers = dict(other.named_buffers())
    for name, buffer in gm.named_buffers():
        assert torch.equal(buffer, buffers[name]), name
    return staged


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_gpt_in_stages_trains_as_the_uncut_one(small_gpt, parts):
    batch = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(1))
    assert_same_training(exported(small_gpt, batch), batch, parts)


@pytest.mark.parametrize("parts", [2, 4])
def test_an_unet_with_skips_and_batch_norms_in_stages_trains_as_the_uncut_one(small_unet, parts):
    batch = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    assert_same_training(exported(small_unet, batch), batch, parts)


@pytest.mark.parametrize("parts", [2, 8])
def test_a_mixture_of_experts_in_stages_trains_as_the_uncut_one(small_moe, parts):
    batch = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(1))
    assert_same_training(exported(small_moe, batch), batch, parts)


def test_a_tied_model_in_stages_trains_as_the_uncut_one_and_both_ends_own_the_table(tied_gpt):
    batch = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(1))
    staged = assert_same_training(exported(tied_gpt, batch), batch, 2)
    first, last = ({id(p) for p in part.parameters()} for part in staged.parts)
    assert len(first & last) == 1


def test_a_cut_between_embedding_and_tied_head_says_that_the_copy_needs_a_summed_gradient(tied_gpt):
    """Report C11."""
    gm = exported(tied_gpt, torch.zeros(2, 16, dtype=torch.long))
    (replica,) = cut(graph_of(gm, name="tied"), 2).replicas
    assert str(replica).endswith("is held by parts 0, 1: the copy needs a summed gradient")


def test_each_parameter_of_an_untied_model_is_owned_by_one_stage(small_gpt):
    gm = exported(small_gpt, torch.zeros(2, 16, dtype=torch.long))
    staged = stages(cut(graph_of(gm, name="gpt"), 4), gm)
    owned = [name for part in staged.parts for name, _ in part.named_parameters()]
    assert sorted(owned) == sorted(name for name, _ in gm.named_parameters())


def test_stages_take_and_give_what_the_cut_says_crosses(small_unet):
    gm = exported(small_unet, torch.zeros(2, 3, 32, 32))
    found = cut(graph_of(gm, name="unet"), 2)
    first, last = stages(found, gm).wires
    crossing = {value.name for value in found.crossings}
    assert set(first.gives) == crossing == set(last.takes)
    assert first.takes == ("x",)


def test_constants_are_computed_in_each_stage_that_reads_them():
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.arange(4) * 0.5 + 1
            for layer in self.layers:
                x = layer(x) * mask
            return x

    torch.manual_seed(0)
    batch = torch.randn(3, 4)
    gm = exported(Masked(), batch)
    staged = assert_same_training(gm, batch, 4)
    for part, wires in zip(staged.parts, staged.wires, strict=True):
        assert len(wires.takes) == 1, "only the hidden state is sent"
        assert any("arange" in node.name for node in part.graph.nodes)


def test_nested_and_named_inputs_and_outputs_keep_their_form():
    class Forms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, pair, *, target, extra):
            hidden = self.a(x) + pair[0] * pair[1]
            y = self.b(hidden) + extra["q"]
            return {"y": y, "loss": (y - target).square().mean(), "hidden": hidden}

    torch.manual_seed(0)
    x, p, q, t, e = torch.randn(5, 2, 4)
    gm = exported(Forms(), x, (p, q), target=t, extra={"q": e})
    staged = stages(cut(graph_of(gm, name="forms"), 2, eps=0.9), gm)
    want = gm(x, (p, q), target=t, extra={"q": e})
    got = staged(x, (p, q), target=t, extra={"q": e})
    assert list(got) == list(want)
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_a_value_written_in_place_is_seen_by_later_stages():
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layers[0](x)
            y.add_(1.0)
            return self.layers[1](y) * y

    torch.manual_seed(0)
    batch = torch.randn(3, 4)
    assert_same_training(exported(Written(), batch), batch, 2)


def test_a_module_that_was_not_cut_is_refused(small_gpt, small_unet):
    gpt = exported(small_gpt, torch.zeros(2, 16, dtype=torch.long))
    unet = exported(small_unet, torch.zeros(2, 3, 32, 32))
    found = cut(graph_of(gpt, name="gpt"), 2)
    with pytest.raises(CutError) as caught:
        stages(found, unet)
    assert str(caught.value) == (
        "the module has 'down_0_0_weight' as node 0, the cut of 'gpt' has 'token_weight'; expected the module whose "
        "graph was cut: graph_of(gm, name=...), then cut(graph, parts), then stages(cut, gm)"
    )
