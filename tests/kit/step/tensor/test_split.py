"""Plans resolved against models: who is split, and what is refused."""

import pytest
import torch
from split_models import Apart, split_gpt
from torch import nn

from kit.step.mesh import Axis
from kit.step.strategy import DDP, TP, StrategyError
from kit.step.tensor.split import Split, joined, layout_of, part_of


def axis(index=0, size=2):
    return Axis(mesh=None, group="0", size=size, index=index)


def split(**options):
    return {name: one.form for name, one in layout_of(split_gpt(layers=2), TP(**options), axis()).splits.items()}


@pytest.mark.parametrize(("dim", "packs"), [(0, 1), (1, 1), (0, 3), (1, 2)])
def test_parts_are_blocks_of_each_pack_and_join_to_the_whole(dim, packs):
    whole = torch.arange(12 * 12).reshape(12, 12)
    parts = [part_of(whole, Split(axis=axis(index, 2), dim=dim, packs=packs)) for index in range(2)]
    rows = whole if dim == 0 else whole.t()
    size = 12 // packs
    for index, part in enumerate(parts):
        expected = torch.cat([rows[p * size :][:size][index * size // 2 :][: size // 2] for p in range(packs)])
        assert torch.equal(part if dim == 0 else part.t(), expected)
    assert torch.equal(joined(parts, Split(axis=axis(), dim=dim, packs=packs)), whole)


def test_weights_and_biases_are_split_by_their_style():
    plan = {"blocks.*.up": "colwise", "blocks.1.down": "rowwise", "token": "rowwise_rep", "head": "colwise_rep"}
    assert split(plan=plan) == {
        "token.weight": (0, 1), "blocks.0.up.weight": (0, 1), "blocks.0.up.bias": (0, 1), "blocks.1.up.weight": (0, 1),
        "blocks.1.up.bias": (0, 1), "blocks.1.down.weight": (1, 1), "head.weight": (0, 1),
    }  # fmt: skip
    assert split(plan={"token": "colwise"}) == {"token.weight": (1, 1)}


def test_gradients_that_see_a_part_of_the_sequence_are_summed():
    plan = {"blocks.0.norm1": "sequence", "blocks.0.out": "rowwise", "blocks.0.qkv": "colwise"}
    summed = layout_of(split_gpt(), TP(plan=plan, sequence_parallel=True), axis()).summed
    assert summed == {"blocks.0.norm1.weight", "blocks.0.norm1.bias", "blocks.0.out.bias"}
    assert layout_of(split_gpt(), TP(plan=plan), axis()).summed == {"blocks.0.norm1.weight", "blocks.0.norm1.bias"}


def test_data_parallel_strategies_split_nothing():
    assert layout_of(split_gpt(), DDP(), None).splits == {}


def frozen():
    model = split_gpt()
    model.head.weight.requires_grad_(False)
    return model


class Own(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (split_gpt, {"plan": {"layers.*": "colwise"}}, "pattern 'layers.*' of the plan matches no module; a star"),
        (split_gpt, {"plan": {"blocks.*": "colwise"}}, "blocks.0 is a SplitBlock and has the style colwise; "),
        (
            split_gpt,
            {"plan": {"blocks.*.up": "colwise", "blocks.0.*p": "rowwise"}},
            r"blocks.0.up is matched by 'blocks.\*.up' and 'blocks.0.\*p'; expected one pattern",
        ),
        (
            lambda: split_gpt(vocabulary=61),
            {"plan": {"head": "colwise_rep"}},
            r"head.weight is \[61, 16\]: dim 0 of 61 does not divide over 2 ranks; make it a multiple of 2",
        ),
        (
            split_gpt,
            {"plan": {"blocks.*.qkv": "colwise"}, "packed": {"blocks.*.qkv": 5}},
            r"blocks.0.qkv.weight is \[48, 16\]: dim 0 of 48 does not divide over 2 ranks x 5 packed",
        ),
        (
            split_gpt,
            {"plan": {"blocks.*.out": "rowwise"}, "packed": {"blocks.*.out": 2}},
            "packed names blocks.0.out, which is rowwise",
        ),
        (
            split_gpt,
            {"plan": {"blocks.*.out": "rowwise"}, "packed": {"head": 2}},
            "packed names head, which is not colwise in the plan",
        ),
        (
            lambda: split_gpt(tied=True),
            {"plan": {"head": "colwise_rep"}},
            r"token.weight is one parameter of token and head \(tied\), which keep it whole and split dim 0; ",
        ),
        (
            lambda: split_gpt(tied=True),
            {"plan": {"head": "colwise_rep", "token": "colwise"}},
            "which split dim 1 and split dim 0; give both",
        ),
        (frozen, {"plan": {"head": "colwise_rep"}}, r"head.weight is frozen \(requires_grad=False\)"),
        (lambda: nn.Sequential(Own(4, 4)), {"plan": {"0": "rowwise"}}, "0 is a Own and .* with the forward of torch"),
        (
            lambda: nn.Sequential(nn.Embedding(4, 4, max_norm=1.0)),
            {"plan": {"0": "rowwise_rep"}},
            "0 has max_norm, scale_grad_by_freq or sparse",
        ),
        (Apart, {"plan": {"norm": "rowwise"}}, "norm is a LayerNorm and has the style rowwise; expected an nn.Linear"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(model, options, words):
    with pytest.raises(StrategyError, match=words):
        layout_of(model(), TP(**options), axis())
