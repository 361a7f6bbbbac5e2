"""Which nodes of a graph each kernel of a compiled graph does the work of, read from what Inductor wrote.

Inductor tells it in three places (2.13): a comment `Topologically Sorted Source Nodes: [...]` before each call in the
output code, a comment `[Provenance debug handles] kernel:3` there, and two JSON texts keyed by that `kernel:3` (nodes
and stack traces), when `trace.provenance_tracking_level` was set. C++ kernels have no source comment, so without the
JSON only Triton's and library calls can be told. The stack traces of level 2 are of generated code, `name =
torch.ops...` in `<eval_with_key>`, and so name the nodes; those of level 1 are the user's.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from kit.timeline.error import TraceError
from kit.timeline.source import read_bytes

_HANDLE = re.compile(r"\[Provenance debug handles\] (?P<kernel>\S+):(?P<number>\d+)\s*$")
_SOURCES = re.compile(r"(?:Topologically Sorted|Unsorted) Source Nodes: \[(?P<nodes>[^\]]*)\], Original ATen: \[")
_CALL = re.compile(
    r"^\s+(?:\w+ = )?(?P<name>extern_kernels\.\w+|torch\.ops\.[\w.]+|triton_\w+|cpp_fused\w*)(?P<run>\.run)?\("
)
_MADE = re.compile(r"<eval_with_key>[^\n]*\n\s*(?P<node>\w+) = ")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)[^\n]*\n[ \t]+(?P<code>[^\n]*)')
_LIBRARY = re.compile(r"/(?:site-packages|torch|lib/python[\d.]+)/|\A<")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """One call of a kernel in a graph: its name as the code has it and the nodes whose work it does.

    `lines` (`file:line: code` of the user) and `modules` (or `(optimizer)`) in the order of the nodes, each once.
    `bytes_read`, `bytes_written` and `flops` are modelled from the nodes; -1 when they were not priced.
    """

    kernel: str
    nodes: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    bytes_read: int = -1
    bytes_written: int = -1
    flops: float = -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOrigins:
    """The calls of one graph in order. `keys` are in the profile's range `## Call CompiledFxGraph <key> ##`.

    Ranks have a key each for the same graph. () for a graph without such a range: it runs node by node inside a step.
    """

    keys: tuple[str, ...]
    calls: tuple[Origin, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelOrigins:
    """What the kernels of some compiled graphs come from; `notes` say in words what is not known."""

    graphs: tuple[GraphOrigins, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        calls = [call for graph in self.graphs for call in graph.calls]
        return (
            f"KernelOrigins({len(self.graphs)} graphs, {len(calls)} kernel calls, "
            f"{sum(bool(call.nodes) for call in calls)} with their nodes)"
        )


def origins_of_text(code: str, *, key: str = "", nodes_of: str = "", stacks_of: str = "") -> GraphOrigins:
    """The calls of one graph from Inductor's output code, with its two JSON texts when they are at hand.

    Raises `TraceError` for JSON texts that are not Inductor's.
    """
    told = _told(nodes_of, stacks_of)
    calls: list[Origin] = []
    nodes: tuple[str, ...] = ()
    handle = ""
    for line in code.splitlines():
        if line.startswith((" ", "\t")) and "#" in line:
            sources, numbered = _SOURCES.search(line), _HANDLE.search(line)
            if sources:
                nodes = tuple(name for name in sources["nodes"].split(", ") if name)
            elif numbered:
                handle = f"{numbered['kernel']}:{numbered['number']}"
        call = _CALL.match(line)
        if call and (call["run"] or not call["name"].startswith("triton_")):
            known = told.get(handle)
            calls.append(replace(known, kernel=call["name"]) if known else Origin(kernel=call["name"], nodes=nodes))
            nodes, handle = (), ""
    return GraphOrigins(keys=(key,) if key else (), calls=tuple(calls))


def read_output_code(path: str | Path) -> KernelOrigins:
    """The calls of a file of Inductor's code cache, or `output_code.py` of TORCH_COMPILE_DEBUG.

    Its nodes have the names of Dynamo's graph, which are the user's variables where they have one. Raises `TraceError`
    when the file calls no kernel.
    """
    raw, _ = read_bytes(Path(path))
    found = origins_of_text(raw.decode("utf-8", errors="replace"))
    if not found.calls:
        raise TraceError(
            f"{path}: calls no kernel; expected Inductor's output code (a .py file of TORCHINDUCTOR_CACHE_DIR that "
            "defines call(), or output_code.py of TORCH_COMPILE_DEBUG=1)"
        )
    bare = sum(not call.nodes for call in found.calls)
    notes = (f"{bare} of {len(found.calls)} calls have no comment that names their nodes",) if bare else ()
    return KernelOrigins(graphs=(found,), notes=notes)


def resolved(origins: GraphOrigins, look_up: Callable[[Origin, frozenset[str]], Origin]) -> GraphOrigins:
    """The same calls, each through `look_up(call, nodes of all calls before it)`, which adds lines and prices."""
    before: set[str] = set()
    calls = []
    for call in origins.calls:
        calls.append(look_up(call, frozenset(before)))
        before.update(call.nodes)
    return replace(origins, calls=tuple(calls))


def joined(parts: Iterable[KernelOrigins]) -> KernelOrigins:
    """One record of what several ranks have; graphs with the same calls become one with the keys of all."""
    keys: dict[tuple[Origin, ...], dict[str, None]] = {}
    notes: dict[str, None] = {}
    for part in parts:
        notes |= dict.fromkeys(part.notes)
        for graph in part.graphs:
            keys.setdefault(graph.calls, {}).update(dict.fromkeys(graph.keys))
    graphs = tuple(GraphOrigins(keys=tuple(found), calls=calls) for calls, found in keys.items())
    return KernelOrigins(graphs=graphs, notes=tuple(notes))


def _told(nodes_of: str, stacks_of: str) -> dict[str, Origin]:
    """What the JSON texts say of each `kernel:number`."""
    try:
        mapping = msgspec.json.decode(nodes_of, type=dict[str, object]) if nodes_of else {}
        made = msgspec.convert(mapping.get("cppCodeToPost", {}), dict[str, list[str]])
        before = msgspec.convert(mapping.get("postToPre", {}), dict[str, list[str]])
        stacks = msgspec.json.decode(stacks_of, type=dict[str, list[str]]) if stacks_of else {}
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise TraceError(
            f"Inductor's provenance: {error}; expected its node mappings and kernel stack traces"
        ) from error
    found = {}
    for handle in {*made, *stacks}:
        written = [match["node"] for stack in stacks.get(handle, ()) if (match := _MADE.search(stack))]
        named = [name for node in made.get(handle, ()) for name in before.get(node, (node,))]
        lines = filter(None, map(_users_line, stacks.get(handle, ())))
        found[handle] = Origin(kernel=handle, nodes=_once(written or named), lines=_once(lines))
    return found


def _users_line(stack: str) -> str:
    """The innermost frame of a stack that is in no library, as `file:line: code`; "" when there is none."""
    frames = [frame for frame in _FRAME.finditer(stack) if not _LIBRARY.search(frame["file"])]
    return f"{frames[-1]['file']}:{frames[-1]['line']}: {frames[-1]['code'].strip()}" if frames else ""


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
