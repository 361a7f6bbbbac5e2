"""Estimate when each collective of a step runs and what of it nothing hides. A model, not a measurement.

Two lanes: compute takes the nodes in the order of the graph, each for its roofline time;
communication takes the collectives one after another. A collective starts when compute reaches it
and the lane is free; a wait holds compute until it has ended. What compute stands still for is exposed.
"""

import math
from collections.abc import Mapping

from kit.graph.liveness import peak_bytes
from kit.graph.record import Graph, Kind
from kit.graph.roofline import node_seconds
from kit.step.hardware import Hardware
from kit.step.record import Estimate, Span

Inputs = dict[int, list[int]]


def estimate(graph: Graph, hardware: Hardware, ranks_of_group: Mapping[str, int]) -> Estimate:
    """Lay a step's graph on two lanes of `hardware`. `ranks_of_group`: ranks of each process group by name."""
    seconds = node_seconds(
        graph, flops_per_second=hardware.flops_per_second, bytes_per_second=hardware.bytes_per_second
    )
    inputs = _inputs_of_communication(graph)
    producer = _collective_of_wait(graph, inputs)
    now = free = exposed = computed = 0.0
    ends: dict[int, tuple[str, float, float]] = {}
    spans: dict[int, Span] = {}
    for row, kind in enumerate(graph.kinds):
        if kind is Kind.COLLECTIVE:
            ranks = ranks_of_group.get(graph.groups[row], 1)
            begin = max(now, free)
            free = begin + collective_seconds(graph.targets[row], _carried(graph, row, inputs), ranks, hardware)
            ends[row] = (graph.targets[row].split(".")[1], begin, free)
        elif kind is Kind.WAIT and row in producer:
            name, begin, end = ends[producer[row]]
            waited = max(0.0, end - now)
            spans[producer[row]] = Span(name=name, start=begin, end=end, exposed=waited)
            exposed, now = exposed + waited, now + waited
        elif kind is Kind.COMPUTE:
            computed, now = computed + float(seconds[row]), now + float(seconds[row])
    ordered = tuple(spans[row] for row in sorted(spans))
    return Estimate(
        hardware=hardware.name,
        seconds=max(now, free),
        compute_seconds=computed,
        communication_seconds=sum(span.end - span.start for span in ordered),
        exposed_seconds=exposed,
        peak_bytes=peak_bytes(graph),
        spans=ordered,
    )


def collective_seconds(target: str, bytes_whole: int, ranks: int, hardware: Hardware) -> float:
    """Seconds of a ring collective over `ranks` that carries `bytes_whole` (the gathered or reduced tensor).

    (ranks - 1) / ranks of the bytes pass each link once, twice for an all-reduce: the bus-bandwidth
    rule of the nccl-tests documentation. The slowest link on the ring is the network's as soon as the
    group does not fit in a node. Latency counts once for each doubling of the ranks.
    """
    if ranks < 2:
        return 0.0
    inside = ranks <= hardware.ranks_per_node
    rate = hardware.link_bytes_per_second if inside else hardware.network_bytes_per_second
    passes = 2 if "all_reduce" in target else 1
    return passes * bytes_whole * (ranks - 1) / ranks / rate + hardware.latency_seconds * math.log2(ranks)


def _carried(graph: Graph, row: int, inputs: Inputs) -> int:
    """Bytes of the whole tensor: what goes in or what comes out, whichever is larger."""
    return max(int(graph.bytes_out[node]) for node in (row, *inputs.get(row, ())))


def _inputs_of_communication(graph: Graph) -> Inputs:
    """The rows that each collective and each wait reads."""
    found: Inputs = {}
    for source, end in zip(graph.edge_from.tolist(), graph.edge_to.tolist(), strict=True):
        if graph.kinds[end] in (Kind.COLLECTIVE, Kind.WAIT):
            found.setdefault(end, []).append(source)
    return found


def _collective_of_wait(graph: Graph, inputs: Inputs) -> dict[int, int]:
    return {
        end: source
        for end, sources in inputs.items()
        for source in sources
        if graph.kinds[end] is Kind.WAIT and graph.kinds[source] is Kind.COLLECTIVE
    }
