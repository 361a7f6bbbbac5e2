"""Which call of a compiled graph each row of a timeline is, by name and by order.

A graph runs its calls in one order, and a profile shows each run of it as a range `## Call CompiledFxGraph <key> ##`
(a graph that is run node by node has none; there the profiler's step is the range, and there can be one such graph).
Inside one run the k-th event of a name is the k-th call of that name, provided there are as many events as calls;
where there are not, none of that name is attributed. A device event belongs to the call whose range launched it; one
without such a range (a replayed CUDA graph) is found by its own name in the same way, which only Triton's kernels
have, and by its place among those (`replayed_calls`).
"""

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.timeline.kinds import device_rows
from kit.timeline.launches import launch_of
from kit.timeline.nesting import enclosing, parent_of
from kit.timeline.origins import GraphOrigins, KernelOrigins
from kit.timeline.record import Category, Timeline
from kit.timeline.replayed_calls import fill_replays

_RUN = re.compile(r"\A## Call CompiledFxGraph (?P<key>\w+) ##")
_STEP = re.compile(r"\AProfilerStep#")
_GRAPH_NUMBER = re.compile(r"\Agraph_\d+_(?=cpp_)")
_OPERATOR = re.compile(r"\A(?:torch\.ops\.)?(?P<space>\w+)\.(?P<name>\w+)(?:\.\w+)?\Z")
_NAMED_OTHERWISE = {"bias_addmm": "addmm"}  # extern_kernels' own function: torch.addmm with a one-dimensional bias


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelCalls:
    """For each row of a timeline the number of its call (graphs and their calls counted through), -1 for none.

    `unmatched`: names of which a run had another number of events than the graph has calls, with both numbers.
    """

    call: NDArray[np.int64]
    unmatched: tuple[str, ...]


def kernel_calls(timeline: Timeline, origins: KernelOrigins) -> KernelCalls:
    """Attribute host rows to calls, then what they launched, then what only its name tells."""
    call = np.full(len(timeline), -1, np.int64)
    unmatched: dict[str, None] = {}
    first = 0
    runs = _runs(timeline, origins)
    for number, graph in enumerate(origins.graphs):
        expected = _expected(graph, first)
        _by_range(timeline, runs == number, expected, call, unmatched)
        first += len(graph.calls)
    hosts = call >= 0
    device = np.flatnonzero(device_rows(timeline))
    launch = launch_of(timeline)[device]
    owner = enclosing(timeline, launch, hosts)
    call[device] = np.where(owner >= 0, call[owner], -1)
    _by_name(timeline, device[call[device] < 0], origins, call, unmatched)
    fill_replays(timeline, origins, call)
    return KernelCalls(call=call, unmatched=tuple(unmatched))


def event_name(kernel: str) -> str:
    """How a profile names a call: `extern_kernels.mm` is `aten::mm`, `aten.mm.default` too; kernels as they are."""
    if kernel.startswith("extern_kernels."):
        name = kernel.partition(".")[2]
        return f"aten::{_NAMED_OTHERWISE.get(name, name)}"
    operator = _OPERATOR.match(kernel)
    return f"{operator['space']}::{operator['name']}" if operator else kernel


def _expected(graph: GraphOrigins, first: int) -> dict[str, list[int]]:
    """Numbers of the calls of each event name, in order."""
    expected = defaultdict(list)
    for place, call in enumerate(graph.calls):
        expected[event_name(call.kernel)].append(first + place)
    return expected


def _runs(timeline: Timeline, origins: KernelOrigins) -> NDArray[np.int64]:
    """For each row the number of the graph that it is a run of, -1 for rows that are none."""
    numbers = {key: number for number, graph in enumerate(origins.graphs) for key in graph.keys}
    bare = [number for number, graph in enumerate(origins.graphs) if not graph.keys]

    def number_of(name: str) -> int:
        run = _RUN.match(name)
        if run:
            return numbers.get(run["key"], -1)
        return bare[0] if len(bare) == 1 and _STEP.match(name) else -1

    by_name = np.array([*map(number_of, timeline.strings), -1], np.int64)
    host = np.isin(timeline.category, (Category.CPU_OP, Category.ANNOTATION))
    return np.where(host, by_name[timeline.name], -1)


def _plain(name: str) -> str:
    return _GRAPH_NUMBER.sub("", name)


def _by_range(
    timeline: Timeline,
    is_run: NDArray[np.bool_],
    expected: dict[str, list[int]],
    call: NDArray[np.int64],
    unmatched: dict[str, None],
) -> None:
    """Fill `call` for the operators and C++ kernels that lie in runs, inside no other expected one."""
    known = np.array([_plain(name) in expected for name in timeline.strings] + [False])
    candidate = known[timeline.name] & (timeline.category == Category.CPU_OP)
    rows = np.flatnonzero(candidate)
    above = enclosing(timeline, parent_of(timeline)[rows], candidate | is_run)
    inside = (above >= 0) & is_run[above]
    rows, above = rows[inside], above[inside]
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row, run in zip(rows.tolist(), above.tolist(), strict=True):
        groups[run, _plain(timeline.strings[timeline.name[row]])].append(row)
    _assign(timeline, groups, expected, call, unmatched)


def _by_name(
    timeline: Timeline,
    rows: NDArray[np.int64],
    origins: KernelOrigins,
    call: NDArray[np.int64],
    unmatched: dict[str, None],
) -> None:
    """Fill `call` for device events that bear the name of a Triton kernel which one graph alone has."""
    expected: dict[str, list[int]] = {}
    first, shared = 0, set()
    for graph in origins.graphs:
        for name, calls in _expected(graph, first).items():
            if name.startswith("triton_"):
                shared |= {name} & expected.keys()
                expected[name] = calls
        first += len(graph.calls)
    for name in sorted(shared):
        del expected[name]
        unmatched[f"{name} (in several graphs)"] = None
    launch = launch_of(timeline)
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row in rows.tolist():
        name = timeline.strings[timeline.name[row]]
        if name in expected:
            one = len(expected[name]) == 1  # then it does not matter which run it is of
            groups[row if one else int(launch[row]), name].append(row)
    _assign(timeline, groups, expected, call, unmatched)


def _assign(
    timeline: Timeline,
    groups: dict[tuple[int, str], list[int]],
    expected: dict[str, list[int]],
    call: NDArray[np.int64],
    unmatched: dict[str, None],
) -> None:
    for (_, name), found in groups.items():
        calls = expected[name]
        if len(found) != len(calls):
            unmatched[f"{name} ({len(found)} events, {len(calls)} calls)"] = None
            continue
        rows = np.array(found, np.int64)
        call[rows[np.argsort(timeline.start_ns[rows], kind="stable")]] = calls
