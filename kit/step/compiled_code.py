"""What runs a graph, for those who look at a profile of it: the graph, and what Inductor made of it.

A graph that is run node by node has no such text: there each node is one call. Nodes are described by the graph's
record: line, module and the price of the work that a kernel does for them.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from kit._torch.executors import texts_of
from kit._torch.inductor_output import CompiledText
from kit.graph.record import Graph, Kind
from kit.graph.region import RegionCost, region_cost, rows_named
from kit.step.cuda_graph import CudaGraphRun

# Inductor writes each input of these straight to its place, by the kernel that makes it.
_PIECEWISE = ("aten.cat.", "aten.stack.")
_UNKNOWN = RegionCost(bytes_read=-1, bytes_written=-1, flops=-1.0)
_NO_WORK = (Kind.INPUT, Kind.CONSTANT, Kind.GETITEM, Kind.OUTPUT)

NODE_BY_NODE = (
    "the graph runs node by node (no Inductor text): its operators are matched by name and order inside each step"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWork:
    """Nodes that one kernel does the work of, in order of the graph; lines and modules each once."""

    nodes: tuple[str, ...]
    lines: tuple[str, ...]
    modules: tuple[str, ...]
    bytes_read: int
    bytes_written: int
    flops: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompiledGraph:
    """A graph that runs and what Inductor made of it; `texts` is () when it runs node by node or did not run yet."""

    graph: Graph
    texts: tuple[CompiledText, ...]

    def calls(self) -> tuple[tuple[str, str], ...]:
        """(operator, node) of what runs node by node, in order: `("aten.mm.default", "mm_3")`."""
        rows = zip(self.graph.targets, self.graph.names, self.graph.kinds, strict=True)
        return tuple((target, name) for target, name, kind in rows if kind not in _NO_WORK)

    def foreach_beyond(self, named: Collection[str]) -> tuple[str, ...]:
        """The operators over lists of tensors (`_foreach_mul_`) that are not among the named nodes."""
        rows = zip(self.graph.names, self.graph.targets, strict=True)
        return tuple(name for name, target in rows if target.startswith("aten._foreach_") and name not in named)

    def work_of(self, names: Collection[str], made_before: Collection[str], shared: Collection[str] = ()) -> NodeWork:
        """The nodes of these names; those of `made_before` are computed again and not written twice.

        `shared`: names that other kernels do the work of too. Views do no work, so their lines count only where there
        is nothing else. A node of no module, such as the optimizer's, has its phase there, `(optimizer)`. Unknown
        names are left out. Not priced (-1): a kernel without known nodes, and one that only goes on with what an
        earlier one began (the second stage of a sum, a piece of a concatenation).
        """
        graph = self.graph
        rows = rows_named(graph, names)
        before = set(rows_named(graph, made_before))
        pieces = {row for row in rows_named(graph, shared) if graph.targets[row].startswith(_PIECEWISE)}
        own = [row for row in rows if row not in pieces]
        working = [row for row in own if graph.kinds[row] not in (Kind.VIEW, Kind.GETITEM)]
        cost = region_cost(graph, own, made_before=before) if _does_something_new(graph, working, before) else _UNKNOWN
        described = [row for row in rows if graph.kinds[row] not in (Kind.VIEW, Kind.GETITEM)] or rows
        return NodeWork(
            nodes=tuple(graph.names[row] for row in rows),
            lines=_once(graph.sources[row] for row in described),
            modules=_once(graph.modules[row] or f"({graph.phases[row]})" for row in described),
            bytes_read=cost.bytes_read, bytes_written=cost.bytes_written, flops=cost.flops,
        )  # fmt: skip


def compiled_graph(graph: Graph, run: Callable[..., Any]) -> CompiledGraph:
    """A graph and what runs it."""
    inner = run.run if isinstance(run, CudaGraphRun) else run
    return CompiledGraph(graph=graph, texts=texts_of(inner))


def _does_something_new(graph: Graph, working: list[int], before: set[int]) -> bool:
    """Whether a node is not made before, or all are ends of products (see `region_cost`)."""
    return any(row not in before for row in working) or (bool(working) and all(graph.flops[row] for row in working))


def _once(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for word in words if word))
