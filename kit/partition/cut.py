"""Cut a forward graph into parts that run one after the other.

Two topological orders are tried, because the exact search is exact for its order only: the order
in which the model runs, and one that keeps few bytes live. The better of the two cuts is returned,
and when the asked balance is impossible the best possible one is, with what it reached.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kit.graph.record import Graph, Phase
from kit.graph.roofline import node_seconds
from kit.partition.assess import Request, assess
from kit.partition.chain import Chain, lay, order_by_live_bytes
from kit.partition.constraints import Clusters, contract
from kit.partition.dp import Boundaries, cheapest, parts_needed, total_load
from kit.partition.loads import amounts, by_cluster
from kit.partition.record import Balance, Cut, CutError, megabytes
from kit.progress import task


def cut(
    graph: Graph,
    parts: int = 2,
    *,
    balance: Balance | str = Balance.TIME,
    eps: float = 0.05,
    flops_per_second: float = 60e12,
    bytes_per_second: float = 1.5e12,
    seconds: ArrayLike | None = None,
) -> Cut:
    """The cut of a forward graph into `parts` parts that crosses the fewest bytes within the balance.

    `balance`: `time` (default; the slowest part sets the pace of a pipeline), `count` (node counts, for
    the written 12 % target) or `memory`. `eps`: allowed max/mean - 1 of it; relaxed step by step
    when no cut meets it. Times are modelled from the two rates, or measured `seconds` [n] of each node.

    Raises `CutError` for a graph or a number of parts that cannot be cut, `ValueError` for bad settings.
    Takes about a second for 8000 nodes, 15 s for 80000 (measured: tiled MoE, 8 parts, one core).
    """
    balance = _checked_balance(balance)
    _check_numbers(parts, eps)
    _check_forward(graph)
    clusters = contract(graph)
    _check_parts(graph, clusters, parts)
    weights = amounts(graph, clusters, _seconds(graph, seconds, flops_per_second, bytes_per_second))
    found = _better_of_two_orders(graph, clusters, weights.of(balance), parts=parts, eps=eps)
    part_of_cluster = np.empty(clusters.count, dtype=np.int32)
    sizes = np.diff(found.boundaries.starts)
    part_of_cluster[found.chain.order] = np.repeat(np.arange(parts, dtype=np.int32), sizes)
    request = Request(
        parts=parts,
        balance=balance,
        eps_asked=eps,
        feasible_parts=found.feasible_parts,
        order=found.order,
        optimal_for_order=True,
        modelled=seconds is None,
    )
    return assess(graph, clusters, part_of_cluster=part_of_cluster, weights=weights, request=request)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Found:
    order: str
    chain: Chain
    boundaries: Boundaries
    feasible_parts: int


def _better_of_two_orders(
    graph: Graph, clusters: Clusters, column: NDArray[np.float64], *, parts: int, eps: float
) -> _Found:
    """Cut both orders; prefer the smaller tolerance, then fewer bytes, then the lighter heaviest part."""
    bytes_of_values = graph.bytes_out[clusters.value_rows]
    orders = {
        "fx": np.arange(clusters.count, dtype=np.int32),
        "live bytes": order_by_live_bytes(clusters, bytes_of_values),
    }
    chains = {
        name: lay(
            clusters,
            order=order,
            loads=by_cluster(clusters, column),
            loads_of_shared=column[clusters.shared_rows],
            bytes_of_values=bytes_of_values,
        )
        for name, order in orders.items()
    }
    cuts: dict[str, Boundaries] = {}
    with task(f"cutting {graph.name} into {parts} parts", total=len(chains)) as work:
        for name, chain in chains.items():
            cuts[name] = cheapest(chain, parts=parts, eps=eps)
            work.advance(f"order {name!r}: {megabytes(cuts[name].bytes_crossing)}")
    best = min(cuts, key=lambda name: (cuts[name].limit_eps, cuts[name].bytes_crossing, cuts[name].heaviest))
    feasible = max(_feasible_parts(chain, parts, eps) for chain in chains.values())
    return _Found(order=best, chain=chains[best], boundaries=cuts[best], feasible_parts=feasible)


def _feasible_parts(chain: Chain, parts: int, eps: float) -> int:
    """The most parts, up to `parts`, into which the chain can be cut within eps."""
    total = total_load(chain)
    return next(
        (k for k in range(parts, 1, -1) if parts_needed(chain, limit=(1 + eps) * total / k) <= k),
        1,
    )


def _checked_balance(balance: Balance | str) -> Balance:
    try:
        return Balance(balance)
    except ValueError:
        valid = ", ".join(repr(str(item)) for item in Balance)
        raise ValueError(f"balance={balance!r}; expected one of {valid}") from None


def _check_numbers(parts: int, eps: float) -> None:
    if not isinstance(parts, int) or isinstance(parts, bool):
        raise TypeError(f"parts={parts!r} is a {type(parts).__name__}; expected a whole number, for example parts=2")
    if parts < 1:
        raise CutError(f"asked for {parts} parts; expected 1 or more, for example parts=2")
    if not (math.isfinite(eps) and eps >= 0):
        raise ValueError(f"eps={eps}; expected the allowed imbalance as a share of 0 or more, for example eps=0.05")


def _check_forward(graph: Graph) -> None:
    counts = graph.count_by_phase()
    later = counts[Phase.BACKWARD] + counts[Phase.OPTIMIZER]
    if graph.collective_count or later:
        raise CutError(
            f"graph {graph.name!r} is a whole training step ({later} nodes of backward and optimizer, "
            f"{graph.collective_count} collectives); a cut takes the forward graph of the unsharded model: "
            "kit.cut(kit.capture(model, batch).graph, parts)"
        )


def _check_parts(graph: Graph, clusters: Clusters, parts: int) -> None:
    if not clusters.count:
        raise CutError(
            f"graph {graph.name!r} has {len(graph)} nodes, none of them computes; "
            "expected a forward graph with work to cut: kit.cut(kit.capture(model, batch).graph, parts)"
        )
    if parts > clusters.count:
        raise CutError(
            f"asked for {parts} parts of graph {graph.name!r}; its {len(graph)} nodes form {clusters.count} "
            f"clusters that must stay whole (tuples, in-place writes, sizes); "
            f"ask for at most {clusters.count}"
        )


def _seconds(
    graph: Graph, measured: ArrayLike | None, flops_per_second: float, bytes_per_second: float
) -> NDArray[np.float64]:
    if measured is None:
        return node_seconds(graph, flops_per_second=flops_per_second, bytes_per_second=bytes_per_second)
    seconds = np.asarray(measured, dtype=np.float64)
    if seconds.shape != (len(graph),):
        raise ValueError(
            f"seconds has shape {seconds.shape}; expected one time for each of the {len(graph)} nodes of "
            f"graph {graph.name!r}, in the order of graph.names"
        )
    if not bool(np.all(np.isfinite(seconds) & (seconds >= 0))):
        row = int(np.argmin(np.isfinite(seconds) & (seconds >= 0)))
        raise ValueError(f"seconds[{row}] of {graph.names[row]} is {seconds[row]}; expected a time of 0 or more")
    return seconds
