"""Lay a compiled step beside a profile of it: its kernels with FX nodes, the user's lines, time and what they achieve.

Ties two rooms that do not know each other: `step` has graphs and what Inductor made of them, `timeline` reads that text
and finds the kernels in a profile. Verbs of their own file, as `verbs` is long.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kit.ranks import Remote, in_rank
from kit.step.compiled import CompiledStep
from kit.step.compiled_code import NODE_BY_NODE, CompiledGraph
from kit.step.hardware import Hardware, hardware_of
from kit.step.static_module import DistributedGraphModule
from kit.step_on_ranks import StepOnRanks
from kit.timeline.artifacts import read_artifacts
from kit.timeline.kernel_origins import OriginRow, origin_table
from kit.timeline.origins import (
    GraphOrigins,
    KernelOrigins,
    Origin,
    joined,
    origins_of_text,
    read_output_code,
    resolved,
)
from kit.timeline.record import Timeline
from kit.timeline.rows import Measured

# Inductor names no node of a kernel that fuses several operators over lists of tensors (an optimizer's `_foreach_`
# ones): theirs are those that no other kernel does.
_LISTS = "triton_for_"


def attribute(
    timeline: Timeline,
    step: Any,
    *,
    rank: int | None = None,
    hardware: str | Hardware | None = None,
    artifacts: str | Path | None = None,
) -> Measured[OriginRow]:
    """The kernels of a compiled step with the FX nodes and the user's lines they come from, and their time.

    `step`: what was profiled: the step of `kit.compile_step`, the module of `kit.compile`, a reference to either, what
    `kit.kernel_origins` gave, or a path to Inductor's output code, which knows nodes but no lines or prices.
    `hardware`: a profile's name or a `kit.Hardware`, for its ceilings. `artifacts`: Triton's or Inductor's cache
    folder, for registers, spills, shared memory and instructions. In a rank, given a step, all ranks call this
    together. Raises `TraceError` for a file or folder that holds none of this, `TypeError` for anything else as
    `step`.
    """
    if isinstance(step, str | Path):
        step = read_output_code(step)
    origins = step if isinstance(step, KernelOrigins) else kernel_origins(step)
    machine = None if hardware is None else hardware_of(hardware)
    return origin_table(
        timeline, origins, rank=rank,
        bytes_per_second=machine.bytes_per_second if machine else None,
        flops_per_second=(machine.ceiling_flops_per_second or machine.flops_per_second) if machine else None,
        artifacts=() if artifacts is None else read_artifacts(artifacts),
    )  # fmt: skip


def kernel_origins(step: Any) -> KernelOrigins:
    """Which nodes and lines each kernel call of a compiled step or module comes from; ask after it ran once.

    In a rank all ranks call this together. Raises `TypeError` for what is no compiled step or module.
    """
    step = step.remote if isinstance(step, StepOnRanks) else step
    if isinstance(step, Remote):
        return joined(step.group.run(_origins, step))
    found = _origins(step)
    if not in_rank():
        return found
    import torch.distributed as dist

    parts: list[KernelOrigins] = [found] * dist.get_world_size()
    dist.all_gather_object(parts, found)
    return joined(parts)


def _origins(step: CompiledStep | DistributedGraphModule) -> KernelOrigins:
    if not isinstance(step, CompiledStep | DistributedGraphModule):
        raise TypeError(
            f"got a {type(step).__name__}, expected a step of kit.compile_step, a module of kit.compile or a reference "
            "to one (ranks['step'])"
        )
    compiled = step.compiled_graphs
    notes = (NODE_BY_NODE,) if any(not one.texts for one in compiled) else ()
    return KernelOrigins(graphs=tuple(graph for one in compiled for graph in graph_origins(one)), notes=notes)


def graph_origins(compiled: CompiledGraph) -> Iterator[GraphOrigins]:
    """The calls of each text that Inductor made of a graph, or of the graph itself where it runs node by node."""
    shared: set[str] = set()

    def described(call: Origin, before: Collection[str]) -> Origin:
        work = compiled.work_of(call.nodes, before, shared)
        return Origin(
            kernel=call.kernel, nodes=work.nodes, lines=work.lines, modules=work.modules,
            bytes_read=work.bytes_read, bytes_written=work.bytes_written, flops=work.flops,
        )  # fmt: skip

    for text in compiled.texts:
        found = origins_of_text(text.code, key=text.key, nodes_of=text.nodes_of, stacks_of=text.stacks_of)
        lists = [number for number, call in enumerate(found.calls) if not call.nodes and call.kernel.startswith(_LISTS)]
        named = {name for call in found.calls for name in call.nodes}
        found = _given(found, lists, nodes=compiled.foreach_beyond(named))
        times = Counter(name for call in found.calls for name in set(call.nodes))
        shared = {name for name, count in times.items() if count > 1}
        found = resolved(found, described)
        # Which of several did how much of the lists is not known.
        yield found if len(lists) < 2 else _given(found, lists, bytes_read=-1, bytes_written=-1, flops=-1.0)
    if not compiled.texts:
        calls = tuple(Origin(kernel=operator, nodes=(node,)) for operator, node in compiled.calls())
        yield resolved(GraphOrigins(keys=(), calls=calls), described)


def _given(graph: GraphOrigins, numbers: Collection[int], **fields: Any) -> GraphOrigins:
    calls = (replace(call, **fields) if n in numbers else call for n, call in enumerate(graph.calls))
    return replace(graph, calls=tuple(calls))
