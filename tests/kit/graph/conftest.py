"""Hand-made graphs for the tests of the graph room."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from kit.graph.record import Graph, Kind, Phase

MakeGraph = Callable[..., Graph]


def build(
    edges: Sequence[tuple[int, int]],
    *,
    n: int | None = None,
    kinds: Sequence[Kind] | None = None,
    phases: Sequence[Phase] | None = None,
    modules: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    sources: Sequence[str] | None = None,
    bytes_out: Sequence[int] | None = None,
    storage: Sequence[int] | None = None,
    groups: Sequence[str] | None = None,
    parameter: Sequence[str] | None = None,
) -> Graph:
    """A graph of given edges; what is not given is plain compute of 4 bytes in its own storage."""
    n = n if n is not None else 1 + max((max(edge) for edge in edges), default=-1)
    ends = np.array(sorted(edges), np.int32).reshape(-1, 2)
    return Graph(
        name="made",
        names=tuple(f"n{row}" for row in range(n)),
        targets=tuple(targets or ["aten.mul.Tensor"] * n),
        kinds=tuple(kinds or [Kind.COMPUTE] * n),
        phases=tuple(phases or [Phase.FORWARD] * n),
        modules=tuple(modules or [""] * n),
        sources=tuple(sources or [""] * n),
        shapes=("float32[1]",) * n,
        groups=tuple(groups or [""] * n),
        parameter=tuple(parameter or [""] * n),
        bytes_out=np.array(bytes_out if bytes_out is not None else [4] * n, np.int64),
        bytes_moved=np.full(n, 8, np.int64),
        flops=np.zeros(n),
        storage=np.array(storage if storage is not None else range(n), np.int32),
        mutates=np.full(n, -1, np.int32),
        edge_from=ends[:, 0].copy(),
        edge_to=ends[:, 1].copy(),
    )


@pytest.fixture(scope="session")
def make_graph() -> MakeGraph:
    return build
