"""Styles by name and torch's own objects mean the same."""

import pytest
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)

from kit.step.strategy import DDP, TP, StrategyError, strategy_of
from kit.step.tensor.styles import Style, StyleError, style_of


@pytest.mark.parametrize(
    ("name", "sequence_parallel", "theirs"),
    [
        ("colwise", False, ColwiseParallel()),
        ("rowwise", False, RowwiseParallel()),
        ("colwise_rep", False, ColwiseParallel(output_layouts=Replicate())),
        ("rowwise_rep", False, RowwiseParallel(input_layouts=Replicate())),
        ("colwise", True, ColwiseParallel(input_layouts=Shard(1))),
        ("rowwise", True, RowwiseParallel(output_layouts=Shard(1))),
        ("colwise_rep", True, ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())),
        ("rowwise_rep", True, RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))),
        ("sequence", True, SequenceParallel()),
        ("split_input", True, PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1))),
        ("gather_output", True, PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate())),
    ],
)
def test_a_name_means_what_the_object_of_torch_means(name, sequence_parallel, theirs):
    assert style_of(name, sequence_parallel=sequence_parallel) == style_of(theirs, sequence_parallel=False)


def test_inputs_by_position_and_name_and_outputs_are_read():
    both = PrepareModuleInputOutput(
        input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None),
        input_kwarg_layouts={"mask": Replicate()}, desired_input_kwarg_layouts={"mask": Shard(0)},
        output_layouts=Replicate(), desired_output_layouts=Shard(1),
    )  # fmt: skip
    assert style_of(both, sequence_parallel=False) == Style(
        kind="convert", takes=((1, None), None), named=(("mask", (None, 0)),), gives=((None, 1),)
    )


def test_unknown_styles_and_layouts_are_refused():
    with pytest.raises(StyleError, match="style 'columns' is not known; expected one of 'colwise', 'rowwise', "):
        style_of("columns", sequence_parallel=False)

    class Partial:
        pass

    with pytest.raises(StyleError, match=r"has no static form; expected Replicate\(\) or Shard\(dim\)"):
        style_of(ColwiseParallel(input_layouts=Partial()), sequence_parallel=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"plan": {}}, "the plan of TP is empty"),
        ({"plan": {"a": "columns"}}, "style 'columns' is not known"),
        ({"plan": {"a": "colwise"}, "packed": {"a": 0}}, "expected whole numbers, such as 3"),
        ({"plan": {"a": "colwise"}, "ranks": 0}, "ranks is 0; expected at least 1"),
        ({"plan": {"a": "colwise"}, "data": "fsdp"}, r"data is 'fsdp'; expected kit\.DDP"),
        ({"plan": {"a": "colwise"}, "data": DDP(axis="tp")}, "both name axis 'tp'; expected two axes"),
    ],
)
def test_a_strategy_that_cannot_be_is_refused_where_it_is_written(options, words):
    with pytest.raises(StrategyError, match=words):
        TP(**options)


def test_a_name_alone_makes_no_plan():
    with pytest.raises(StrategyError, match=r"strategy 'tp' is not known; .* or kit\.TP\(plan=\.\.\.\)"):
        strategy_of("tp")
