"""Collapsing real and adversarial graphs: few nodes, no cycle, communication apart."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.graph.collapse import collapse
from kit.graph.collapse_record import Collapsed
from kit.graph.record import Graph, Kind, Phase

F, B = Phase.FORWARD, Phase.BACKWARD
COMMUNICATION = (Kind.COLLECTIVE, Kind.WAIT)


def _groups(shown: Collapsed) -> list[set[int]]:
    """The rows of each visible node."""
    return [set(np.flatnonzero(shown.group == number).tolist()) for number in range(len(shown))]


def _require_sound(shown: Collapsed, graph: Graph) -> None:
    """Edges run forward (so no cycle), and those of the full graph are all there, folds apart."""
    assert (shown.edge_from < shown.edge_to).all()
    drawn = set(zip(shown.edge_from.tolist(), shown.edge_to.tolist(), strict=True))
    for a, b in zip(graph.edge_from.tolist(), graph.edge_to.tolist(), strict=True):
        pair = int(shown.group[a]), int(shown.group[b])
        folded = min(pair) >= 0 and (shown.repeats[list(pair)] > 1).all()
        assert pair[0] == pair[1] or min(pair) < 0 or folded or pair in drawn


@st.composite
def _wild(draw: st.DrawFn) -> dict[str, Any]:
    """Any small graph with modules, phases and kinds that have nothing to do with its edges."""
    n = draw(st.integers(1, 14))
    pairs = list(itertools.combinations(range(n), 2))
    edges = sorted(draw(st.sets(st.sampled_from(pairs), max_size=24))) if pairs else []
    modules = st.sampled_from(["", "a", "a.b", "h.0", "h.1", "h.2", "h.0.x", "h.1.x", "h.2.x"])
    kinds = st.sampled_from([Kind.COMPUTE, Kind.COMPUTE, Kind.VIEW, *COMMUNICATION, Kind.INPUT, Kind.GETITEM])
    drawn_kinds = [draw(kinds) for _ in range(n)]
    made = {b: sum(1 for edge in edges if edge[1] == b) for b in range(n)}
    kept = [k if k is not Kind.GETITEM or made[row] == 1 else Kind.COMPUTE for row, k in enumerate(drawn_kinds)]
    return {
        "n": n,
        "edges": edges,
        "modules": [draw(modules) for _ in range(n)],
        "phases": [draw(st.sampled_from(list(Phase))) for _ in range(n)],
        "kinds": kept,
    }


@settings(max_examples=300)
@given(wild=_wild(), limit=st.integers(8, 16))
def test_any_graph_collapses_without_a_cycle_and_within_the_limit(
    make_graph: Callable[..., Graph], wild: dict[str, Any], limit: int
) -> None:
    graph = make_graph(**wild)
    shown = collapse(graph, max_groups=limit)
    assert len(shown) <= limit
    _require_sound(shown, graph)
    hidden = (Kind.INPUT, Kind.CONSTANT, Kind.OUTPUT)
    assert [number < 0 for number in shown.group] == [kind in hidden for kind in graph.kinds]


@settings(max_examples=150)
@given(wild=_wild())
def test_communication_and_computation_never_share_a_node(
    make_graph: Callable[..., Graph], wild: dict[str, Any]
) -> None:
    wild["kinds"] = [Kind.COMPUTE if kind is Kind.GETITEM else kind for kind in wild["kinds"]]
    graph = make_graph(**wild)
    for rows in _groups(collapse(graph)):
        assert len({graph.kinds[row] if graph.kinds[row] in COMMUNICATION else None for row in rows}) == 1


def _blocks(count: int, *, odd: int = -1) -> dict[str, Any]:
    """A chain of `count` blocks of three operators with a residual; block `odd` does something else."""
    edges, modules, targets = [], ["token"], ["aten.embedding.default"]
    at = 0
    for number in range(count):
        edges += [(at, at + 1), (at + 1, at + 2), (at, at + 3), (at + 2, at + 3)]
        modules += [f"blocks.{number}.norm", f"blocks.{number}.mlp", f"blocks.{number}"]
        targets += ["aten.layer_norm.default", "aten.tanh.default" if number == odd else "aten.linear.default"]
        targets += ["aten.add.Tensor"]
        at += 3
    return {"edges": edges, "modules": modules, "targets": targets}


def test_identical_blocks_fold_into_one_of_each_operator(make_graph: Callable[..., Graph]) -> None:
    shown = collapse(make_graph(**_blocks(12)))
    assert shown.labels == ("embedding", "layer_norm", "linear", "add")
    assert shown.modules == ("token", "blocks.0-11.norm", "blocks.0-11.mlp", "blocks.0-11")
    assert shown.repeats.tolist() == [1, 12, 12, 12]
    assert (shown.group >= 0).all()


def test_a_block_that_differs_splits_the_fold(make_graph: Callable[..., Graph]) -> None:
    shown = collapse(make_graph(**_blocks(9, odd=4)))
    assert sorted(set(shown.repeats.tolist())) == [1, 4]
    assert {"blocks.0-3.mlp", "blocks.4.mlp", "blocks.5-8.mlp"} <= set(shown.modules)


def test_two_blocks_are_drawn_as_they_are(make_graph: Callable[..., Graph]) -> None:
    assert set(collapse(make_graph(**_blocks(2))).repeats.tolist()) == {1}


def test_blocks_that_something_outside_stands_between_do_not_fold(make_graph: Callable[..., Graph]) -> None:
    modules = ["h.0", "", "h.1", "", "h.2"]
    shown = collapse(make_graph([(0, 1), (1, 2), (2, 3), (3, 4)], modules=modules))
    assert set(shown.repeats.tolist()) == {1}
    assert len(shown) == 5


def test_a_cut_through_the_blocks_cuts_the_fold(make_graph: Callable[..., Graph]) -> None:
    graph = make_graph(**_blocks(6))
    shown = collapse(graph, parts=[0] * 10 + [1] * 9)
    assert {"blocks.0-2.mlp", "blocks.3-5.mlp"} <= set(shown.modules)
    assert all(shown.parts[shown.group[row]] == (row >= 10) for row in range(len(graph)))


def test_copies_held_by_every_part_are_hidden(make_graph: Callable[..., Graph]) -> None:
    shown = collapse(make_graph([(0, 1), (0, 2), (1, 2)]), parts=[-1, 0, 1])
    assert shown.group.tolist() == [-1, 0, 1]


def test_a_limit_takes_the_finest_module_depth_that_fits(make_graph: Callable[..., Graph]) -> None:
    edges = [(row, row + 1) for row in range(39)]
    modules = [f"layer_{'abcdefghij'[row // 4]}.{'xy'[row % 4 // 2]}" for row in range(40)]
    graph = make_graph(edges, modules=modules)
    assert len(collapse(graph, max_groups=40)) == 40
    assert len(collapse(graph, max_groups=20)) == 20
    assert collapse(graph, max_groups=10).labels[0] == "layer_a"


def test_collectives_of_one_module_are_one_bundle(make_graph: Callable[..., Graph]) -> None:
    n = 60
    kinds = [Kind.COMPUTE] + [Kind.COLLECTIVE] * 21 + [Kind.WAIT] * 21 + [Kind.COMPUTE] * (n - 43)
    edges = [(0, 1 + i) for i in range(21)] + [(1 + i, 22 + i) for i in range(21)]
    edges += [(22 + i, 43) for i in range(21)] + [(row, row + 1) for row in range(43, n - 1)]
    targets = ["_c10d_functional.all_reduce.default" if k is Kind.COLLECTIVE else "aten.mul.Tensor" for k in kinds]
    graph = make_graph(edges, kinds=kinds, targets=targets, modules=["head"] * n)
    shown = collapse(graph, max_groups=12)
    assert shown.labels[1:3] == ("21 all_reduce", "21 wait")
    assert shown.collectives.tolist()[1] == 21


def test_a_chain_of_collectives_longer_than_the_limit_still_fits(make_graph: Callable[..., Graph]) -> None:
    kinds = [Kind.COMPUTE, Kind.COLLECTIVE, Kind.WAIT] * 100
    shown = collapse(make_graph([(row, row + 1) for row in range(299)], kinds=kinds), max_groups=20)
    assert len(shown) <= 20
    assert shown.collectives.sum() == 100


def test_bytes_of_an_edge_count_each_value_once(make_graph: Callable[..., Graph]) -> None:
    edges = [(0, 2), (0, 3), (1, 2)] + [(row, row + 1) for row in range(2, 30)]
    modules = ["a", "a"] + ["b"] * 29
    shown = collapse(make_graph(edges, modules=modules, bytes_out=[100, 10, *[1] * 29]), max_groups=8)
    assert shown.edge_bytes.tolist() == [110]


def test_parameters_are_counted_at_their_first_reader(make_graph: Callable[..., Graph]) -> None:
    graph = make_graph(
        [(0, 1), (1, 2), (0, 2)],
        kinds=[Kind.INPUT, Kind.COMPUTE, Kind.COMPUTE],
        parameter=["w", "", ""],
        bytes_out=[64, 4, 4],
    )
    assert collapse(graph).parameter_bytes.tolist() == [64, 0]


def test_too_small_a_limit_is_refused(make_graph: Callable[..., Graph]) -> None:
    with pytest.raises(ValueError, match="max_groups=3; expected at least 8"):
        collapse(make_graph([(0, 1)]), max_groups=3)


def test_parts_of_another_length_are_refused(make_graph: Callable[..., Graph]) -> None:
    with pytest.raises(ValueError, match="parts has 1 entries, the graph 'made' has 2 nodes; expected one each"):
        collapse(make_graph([(0, 1)]), parts=[0])


@pytest.mark.parametrize("with_modules", [True, False], ids=["modules", "no modules"])
def test_fifty_thousand_nodes_collapse_within_seconds(make_graph: Callable[..., Graph], with_modules: bool) -> None:
    rng = np.random.default_rng(0)
    n = 50_000
    far = np.sort(rng.integers(0, n, (16_000, 2)), axis=1)
    edges = {(at, at + 1) for at in range(n - 1)} | {(int(a), int(b)) for a, b in far if a < b}
    modules = [f"net.{at // 500}.part{at // 100 % 5}" if with_modules else "" for at in range(n)]
    targets = [f"aten.op{at % 7}.default" for at in range(n)]
    graph = make_graph(sorted(edges), phases=[F] * 25_000 + [B] * 25_000, modules=modules, targets=targets)
    start = time.process_time()
    shown = collapse(graph)
    assert time.process_time() - start < 5.0
    assert len(shown) <= 120
    assert (shown.edge_from < shown.edge_to).all()
