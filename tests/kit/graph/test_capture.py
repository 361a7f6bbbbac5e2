"""Capturing models, good and bad, without changing them."""

import copy

import pytest
import torch
from torch import nn

from kit.graph.capture import CaptureError, capture
from kit.graph.capture_record import Break, Capture
from kit.graph.record import Kind


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(10, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.token.weight
        self.norm.bias.requires_grad_(False)

    def forward(self, ids: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.head(self.drop(self.norm(self.token(ids)))) * scale


def test_a_model_is_left_as_it_was() -> None:
    model = _Tied()
    before = copy.deepcopy(model.state_dict())
    flags = [parameter.requires_grad for parameter in model.parameters()]
    capture(model, torch.zeros(4, dtype=torch.long))
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert all(module.training for module in model.modules())
    assert model.head.weight is model.token.weight
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_tied_weights_are_one_memory() -> None:
    graph = capture(_Tied(), torch.zeros(4, dtype=torch.long)).graph
    lookup = graph.targets.index("aten.embedding.default")
    product = graph.targets.index("aten.linear.default")
    sources = {end: [] for end in (lookup, product)}
    for source, end in zip(graph.edge_from.tolist(), graph.edge_to.tolist(), strict=True):
        if end in sources and graph.kinds[source] is Kind.INPUT and graph.parameter[source]:
            sources[end].append(int(graph.storage[source]))
    assert sources[lookup] == sources[product] != []


@pytest.mark.parametrize(
    "batch",
    [
        (torch.zeros(4, dtype=torch.long),),
        {"ids": torch.zeros(4, dtype=torch.long)},
        [torch.zeros(4, dtype=torch.long), 2.0],
    ],
    ids=["positional", "keyword", "with a number"],
)
def test_a_batch_may_be_given_in_each_form(batch: object) -> None:
    graph = capture(_Tied(), batch).graph
    assert "aten.linear.default" in graph.targets
    assert not any("guards" in target for target in graph.targets)


def test_another_kind_of_batch_is_refused() -> None:
    with pytest.raises(TypeError, match=r"batch is a int; expected a tensor, a tuple of positional arguments or"):
        capture(_Tied(), 3)


class _Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return x


class _Item(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * int(x.max().item())


class _Select(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0] * 2


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (_Branch(), "if x.sum() > 0:"),
        (_Item(), "return x * int(x.max().item())"),
        (_Select(), "return x[x > 0] * 2"),
    ],
    ids=["branch", "item", "select"],
)
def test_control_by_values_names_the_users_line_and_the_way_out(
    model: nn.Module, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(model, torch.ones(4))
    message = str(caught.value)
    assert f"{__file__}:" in message
    assert line in message
    assert "torch.where" in message
    assert "move it out of the model" in message
    assert capfd.readouterr().err == ""  # nothing but the error is written


class _Wrong(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x[:, :4])


def test_a_model_that_fails_names_its_line_and_the_failure() -> None:
    with pytest.raises(CaptureError, match=r"_Wrong failed while it was captured: .*return self\.head\(x\[:, :4\]\)"):
        capture(_Wrong(), torch.zeros(3, 8))


def test_several_graphs_have_no_single_one() -> None:
    graph = capture(nn.ReLU(), torch.zeros(3)).graph
    broken = Break(reason="print", file="a.py", line=3, code="print(x)")
    with pytest.raises(ValueError) as caught:
        _ = Capture(model="M", graphs=(graph, graph), breaks=(broken,)).graph
    assert str(caught.value) == (
        "M gave 2 graphs, expected one. Breaks: a.py:3: print(x) (print). Use .graphs, or change the lines named"
    )
