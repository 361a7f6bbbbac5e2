"""Live bytes against a brute force over storages and against a real run."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from kit.graph.capture import export_module
from kit.graph.from_fx import graph_of
from kit.graph.liveness import live_bytes, peak_bytes
from kit.graph.record import Graph, Kind


def _by_hand(graph: Graph) -> list[int]:
    """For each row, sum the storages that exist and that somebody still reads: no shared code."""
    edges = list(zip(graph.edge_from.tolist(), graph.edge_to.tolist(), strict=True))
    result = []
    for now in range(len(graph)):
        total = 0
        for number in set(graph.storage.tolist()):
            sharing = [row for row in range(len(graph)) if graph.storage[row] == number]
            held = any(graph.kinds[row] in (Kind.INPUT, Kind.CONSTANT) for row in sharing)
            reads = [b for a, b in edges if a in sharing]
            if held or sharing[0] <= now <= max([*reads, *sharing]):
                total += int(graph.bytes_out[sharing[0]])
        result.append(total)
    return result


@st.composite
def _graphs(draw: st.DrawFn) -> dict[str, Any]:
    n = draw(st.integers(1, 9))
    row = st.integers(0, n - 1)
    edges = draw(st.sets(st.tuples(row, row).filter(lambda edge: edge[0] < edge[1])))
    kinds = st.sampled_from([Kind.INPUT, Kind.COMPUTE, Kind.VIEW, Kind.CONSTANT])
    return {
        "edges": sorted(edges),
        "n": n,
        "storage": [draw(st.integers(0, at)) for at in range(n)],
        "kinds": [draw(kinds) for _ in range(n)],
        "bytes_out": draw(st.lists(st.integers(0, 100), min_size=n, max_size=n)),
    }


@settings(max_examples=150)
@given(given_graph=_graphs())
def test_the_curve_equals_a_brute_force_over_storages(
    make_graph: Callable[..., Graph], given_graph: dict[str, Any]
) -> None:
    graph = make_graph(**given_graph)
    assert live_bytes(graph).tolist() == _by_hand(graph)
    assert peak_bytes(graph) == max(_by_hand(graph))


def test_a_chain_holds_two_values_at_a_time(make_graph: Callable[..., Graph]) -> None:
    graph = make_graph([(0, 1), (1, 2), (2, 3)], bytes_out=[10, 20, 30, 40])
    assert live_bytes(graph).tolist() == [10, 30, 50, 70]


def test_an_input_lives_to_the_end(make_graph: Callable[..., Graph]) -> None:
    kinds = [Kind.INPUT, Kind.COMPUTE, Kind.COMPUTE]
    graph = make_graph([(0, 1), (1, 2)], kinds=kinds, bytes_out=[1000, 1, 2])
    assert live_bytes(graph).tolist() == [1000, 1001, 1003]


def test_a_view_keeps_its_storage_alive_and_adds_nothing(make_graph: Callable[..., Graph]) -> None:
    kinds = [Kind.COMPUTE, Kind.VIEW, Kind.COMPUTE, Kind.COMPUTE]
    graph = make_graph([(0, 1), (1, 3), (0, 2)], kinds=kinds, bytes_out=[8, 8, 1, 1], storage=[0, 0, 1, 2])
    assert live_bytes(graph).tolist() == [8, 8, 9, 9]


def test_an_item_of_a_tuple_exists_since_the_tuple_was_made(make_graph: Callable[..., Graph]) -> None:
    kinds = [Kind.COMPUTE, Kind.COMPUTE, Kind.GETITEM]
    graph = make_graph([(0, 2)], n=3, kinds=kinds, bytes_out=[0, 5, 7], storage=[-1, 0, 1])
    assert live_bytes(graph).tolist() == [7, 12, 7]


def test_the_peak_of_nothing_is_zero(make_graph: Callable[..., Graph]) -> None:
    assert peak_bytes(make_graph([], n=0)) == 0


class _Storages(TorchDispatchMode):
    """After each operator, adds up the memory of all tensors that operators have made and nobody freed."""

    def __init__(self, held: int) -> None:
        super().__init__()
        self.held, self.curve = held, [held]
        self.alive: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        known = {tensor.untyped_storage()._cdata for tensor in _tensors([args, kwargs])}
        for tensor in _tensors(out):
            storage = tensor.untyped_storage()
            if storage._cdata not in known:
                self.alive[storage._cdata] = (storage._weak_ref(), storage.nbytes())
        freed = [key for key, (weak, _) in self.alive.items() if torch.UntypedStorage._expired(weak)]
        for key in freed:
            torch.UntypedStorage._free_weak_ref(self.alive.pop(key)[0])
        self.curve.append(self.held + sum(size for _, size in self.alive.values()))
        return out


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, 256)
        self.second = torch.nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.relu(self.first(x))
        left, right = wide.chunk(2, -1)
        both = torch.cat([left * 2, right.clone()], -1).add_(1)
        return (self.second(both) + x).sum()


def test_the_curve_is_that_of_a_real_run() -> None:
    x = torch.zeros(32, 64)
    gm = export_module(_Net(), (x,), {})
    graph = graph_of(gm, name="net")
    held = int(graph.bytes_out[[kind is Kind.INPUT for kind in graph.kinds]].sum())
    with torch.no_grad(), _Storages(held) as real:
        gm(x)
    assert max(real.curve) == peak_bytes(graph)
    # The run has an entry for each operator; the record has the output node too, which is none.
    assert set(real.curve) == set(live_bytes(graph)[:-1].tolist())
