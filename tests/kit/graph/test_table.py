"""Tables against counts written by hand."""

from collections.abc import Callable

import pytest

from kit.graph.record import Graph, Kind, Phase
from kit.graph.table import (
    ChangeRow,
    CollectiveRow,
    collective_rows,
    collectives_mapped_share,
    compare,
    mapped_share,
    summary,
    to_html,
)

F, B = Phase.FORWARD, Phase.BACKWARD
REDUCE = "_c10d_functional.all_reduce.default"


@pytest.fixture(scope="module")
def reduced(make_graph: Callable[..., Graph]) -> Graph:
    """An input, a product, a view, and two all-reduces with their waits."""
    return make_graph(
        [(0, 1), (1, 2), (2, 3), (3, 4), (2, 5), (5, 6)],
        kinds=[Kind.INPUT, Kind.COMPUTE, Kind.VIEW, *[Kind.COLLECTIVE, Kind.WAIT] * 2],
        phases=[F, F, F, B, B, B, B],
        targets=["x", "aten.mm.default", "aten.t.default", *[REDUCE, "_c10d_functional.wait_tensor.default"] * 2],
        modules=["", "head", "", "head", "head", "", ""],
        sources=["", "", "a.py:1: f", "", "", "", ""],
        groups=["", "", "", "world", "", "world", ""],
    )


def test_a_phase_counts_its_nodes_by_kind_and_how_many_are_mapped(reduced: Graph) -> None:
    forward, backward = summary(reduced)
    assert (forward.nodes, forward.compute, forward.views, forward.with_module, forward.with_source) == (
        2,
        1,
        1,
        0.5,
        0.5,
    )
    assert (backward.nodes, backward.collectives, backward.waits, backward.with_module) == (4, 2, 2, 0.5)


def test_collectives_of_one_group_and_phase_are_one_row(reduced: Graph) -> None:
    assert collective_rows(reduced) == [
        CollectiveRow(name="all_reduce", phase=B, group="world", count=2, bytes_carried=8, mapped=0.5)
    ]


def test_a_node_is_mapped_by_module_or_by_source(reduced: Graph) -> None:
    assert mapped_share(reduced) == {F: 1.0, B: 0.5}
    assert collectives_mapped_share(reduced) == 0.5


def test_a_graph_without_collectives_is_wholly_mapped(make_graph: Callable[..., Graph]) -> None:
    assert collectives_mapped_share(make_graph([(0, 1)])) == 1.0


def test_a_comparison_shows_what_bucketing_did(reduced: Graph, make_graph: Callable[..., Graph]) -> None:
    bucketed = make_graph(
        [(0, 1), (1, 2)],
        kinds=[Kind.COMPUTE, Kind.COLLECTIVE, Kind.WAIT],
        targets=["aten.cat.default", REDUCE, "_c10d_functional.wait_tensor.default"],
        bytes_out=[8, 8, 8],
    )
    assert compare(reduced, bucketed) == [
        ChangeRow(what="nodes", before=7, after=3),
        ChangeRow(what="all_reduce", before=2, after=1),
        ChangeRow(what="all_reduce: bytes carried", before=8, after=8),
        ChangeRow(what="waits", before=2, after=1),
    ]


def test_rows_become_an_escaped_table() -> None:
    html = to_html([ChangeRow(what="<b>: bytes", before=2_000, after=1)], caption="a & b")
    assert html == (
        "<table><caption>a &amp; b</caption><thead><tr><th>what</th><th>before</th><th>after</th></tr></thead>"
        '<tbody><tr><td style="text-align:left">&lt;b&gt;: bytes</td><td style="text-align:right">2 kB</td>'
        '<td style="text-align:right">1 B</td></tr></tbody></table>'
    )


def test_no_rows_are_no_table() -> None:
    assert to_html([]) == ""
