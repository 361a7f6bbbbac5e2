"""Estimate when each collective of a step runs and what of it nothing hides. A model, not a measurement.

Two lanes: compute takes the kernels in the order of the graph, each for its roofline time and what a kernel
costs beside; run node by node each node is a kernel, under a fusing compiler `kit.graph.fusion` says what is left.
Communication takes the collectives one after another. A collective starts when compute reaches it
and the lane is free; a wait holds compute until it has ended. What compute stands still for is exposed.
Times that were measured may stand in for modelled ones; the lanes are laid out in the same way.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kit.graph.fusion import Kernels, fused, one_by_one
from kit.graph.liveness import peak_bytes
from kit.graph.record import Graph, Kind
from kit.graph.roofline import node_seconds
from kit.step.hardware import Hardware
from kit.step.record import Block, Estimate, Measured, Span

Inputs = dict[int, list[int]]
WAITING = "waiting"
FUSING = ("inductor", "cuda_graph")  # executors


class MeasuredTimesError(ValueError):
    """Measured times that are of another step than the graph."""


def estimate(
    graph: Graph,
    hardware: Hardware,
    ranks_of_group: Mapping[str, int],
    measured: Measured | None = None,
    *,
    executor: str = "eager",
) -> Estimate:
    """Lay a step's graph on two lanes of `hardware`. `ranks_of_group`: ranks of each process group by name.

    `executor`: what runs it, as in `compile_step`; Inductor joins kernels and keeps fewer values.
    `measured`: times to use instead; compute is then shared out among the nodes as the model shares it.
    Raises `MeasuredTimesError` when its collectives are not those of the graph.
    """
    kernels = fused(graph) if executor in FUSING else one_by_one(graph)
    compute = _compute_seconds(kernels, hardware)
    inputs = _inputs_of_communication(graph)
    carry = {
        row: collective_seconds(
            graph.targets[row], _carried(graph, row, inputs), ranks_of_group.get(graph.groups[row], 1), hardware
        )
        for row, kind in enumerate(graph.kinds)
        if kind is Kind.COLLECTIVE
    }
    if measured is not None:
        alone = [row for row in carry if ranks_of_group.get(graph.groups[row], 1) == 1]
        carry = _measured_collectives(graph, list(carry), measured, alone=alone)
        if measured.compute_seconds is not None and compute.sum() > 0:
            compute = compute * (measured.compute_seconds / compute.sum())
    lanes = _lay_out(graph, compute.tolist(), carry, _collective_of_wait(graph, inputs))
    return Estimate(
        hardware=hardware.name if measured is None else "measured times",
        seconds=max(lanes.now, lanes.free),
        compute_seconds=float(compute.sum()),
        communication_seconds=sum(carry.values()),
        exposed_seconds=sum(block.end - block.start for block in lanes.blocks if block.phase == WAITING),
        peak_bytes=peak_bytes(kernels.graph),
        spans=lanes.spans(graph),
        compute=tuple(lanes.blocks),
        measured=measured is not None,
        sources=hardware.sources if measured is None else f"{measured.source}; what it lacks: {hardware.sources}",
    )


def _compute_seconds(kernels: Kernels, hardware: Hardware) -> NDArray[np.float64]:
    """Modelled seconds of each row [n], 0 where nothing computes."""
    graph = kernels.graph
    seconds = node_seconds(
        graph, flops_per_second=hardware.flops_per_second, bytes_per_second=hardware.bytes_per_second
    )
    if hardware.attention_flops_per_second is not None:
        attends = ["scaled_dot_product" in target for target in graph.targets]
        seconds = np.where(attends, np.maximum(seconds, graph.flops / hardware.attention_flops_per_second), seconds)
    seconds += kernels.begins * hardware.kernel_seconds
    return np.where([kind is Kind.COMPUTE for kind in graph.kinds], seconds, 0.0)


class _Lanes:
    """Both lanes while they are laid out: compute has come to `now`, communication is free from `free` on."""

    def __init__(self) -> None:
        self.now = self.free = 0.0
        self.blocks: list[Block] = []
        self.sent: dict[int, tuple[float, float]] = {}

    def compute(self, phase: str, seconds: float) -> None:
        if seconds <= 0:
            return
        last = self.blocks[-1] if self.blocks else None
        start = self.now
        self.now += seconds
        if last is not None and last.phase == phase:
            self.blocks[-1] = replace(last, end=self.now)
        else:
            self.blocks.append(Block(phase=phase, start=start, end=self.now))

    def spans(self, graph: Graph) -> tuple[Span, ...]:
        """The collectives in the order of the graph; exposed is what of each lies under a wait."""
        waits = [block for block in self.blocks if block.phase == WAITING]
        return tuple(
            Span(
                name=graph.targets[row].split(".")[1],
                start=start,
                end=end,
                exposed=sum(max(0.0, min(end, w.end) - max(start, w.start)) for w in waits),
            )
            for row, (start, end) in sorted(self.sent.items())
        )


def _lay_out(graph: Graph, compute: list[float], carry: Mapping[int, float], producer: Mapping[int, int]) -> _Lanes:
    lanes = _Lanes()
    for row, kind in enumerate(graph.kinds):
        if kind is Kind.COLLECTIVE:
            start = max(lanes.now, lanes.free)
            lanes.free = start + carry[row]
            lanes.sent[row] = start, lanes.free
        elif kind is Kind.WAIT and row in producer:
            lanes.compute(WAITING, lanes.sent[producer[row]][1] - lanes.now)
        else:
            lanes.compute(graph.phases[row].value, compute[row])
    return lanes


def _measured_collectives(
    graph: Graph, rows: list[int], measured: Measured, *, alone: Sequence[int] = ()
) -> dict[int, float]:
    """Seconds of each collective row: the k-th of its kind that was measured is the k-th of its kind here.

    `alone`: rows in groups of one rank, for which NCCL runs no kernel and gloo records one.
    """
    times: dict[str, list[float]] = {}
    for name, seconds in measured.collectives:
        times.setdefault(name, []).append(seconds)
    kinds = [_kind_of(graph.targets[row]) for row in rows]
    if "reduce_scatter" not in times:  # gloo makes an all-reduce of it (torch 2.13), and calls it so
        kinds = [kind.replace("reduce_scatter", "all_reduce") for kind in kinds]
    seen, wanted = Counter(name for name, _ in measured.collectives), Counter(kinds)
    if seen != wanted and alone:
        others = _measured_collectives(graph, [row for row in rows if row not in alone], measured)
        return dict.fromkeys(alone, 0.0) | others
    if seen != wanted:
        raise MeasuredTimesError(
            f"{measured.source}: a step with {dict(seen)} collectives was measured, this one has {dict(wanted)}; "
            "profile this very step, with the executor it runs with"
        )
    queues = {name: iter(found) for name, found in times.items()}
    return {row: next(queues[kind]) for row, kind in zip(rows, kinds, strict=True)}


def _kind_of(target: str) -> str:
    """`all_gather` for `_c10d_functional.all_gather_into_tensor.default`."""
    name = target.split(".")[1]
    return next((kind for kind in ("all_reduce", "all_gather", "reduce_scatter") if name.startswith(kind)), name)


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
