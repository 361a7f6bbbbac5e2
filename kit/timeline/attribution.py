"""Attribute what ran on a device to operator, module, annotation and source line, as far as the file has it.

The chain: device event -> launch call (correlation) -> operator that made the call (external id, or the range around
the call) -> outermost operator -> `nn.Module` and source line (Python frames, profiled `with_stack=True`) and the
user's annotation. A kernel of the backward takes module and line from the forward operator with the same sequence
number, which autograd keeps for that purpose. Kernels of a replayed CUDA graph have a launch call and nothing else.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kit.timeline.kinds import rows_named
from kit.timeline.launches import launch_of
from kit.timeline.nesting import enclosing, outermost, parent_of
from kit.timeline.record import Category, Timeline

_MODULE = re.compile(r"\Ann\.Module: ")
_FRAME = re.compile(r"\A(?P<file>[^<>:]+\.py)\((?P<line>\d+)\): ")
_NOT_THE_USERS = re.compile(
    r"(?:\A|/)(?:torch|torch_\w+|torchvision|functorch|triton|numpy)/|(?:\A|/)(?:threading|contextlib|runpy|selectors|"
    r"functools|asyncio/\w+|concurrent/[\w/]+|queue|subprocess|multiprocessing/\w+)\.py|(?:\A|/)(?:IPython|ipykernel|tornado)/|"
    r"(?:\A|/site-packages/)kit/(?:(?:_torch|graph|partition|ranks|step|timeline|tuning)/|(?:verbs|step_kernels|step_on_ranks)\.py)"
)
# Annotations that mark steps or wrap everything say nothing of where a kernel comes from.
_MARKS = re.compile(r"\AProfilerStep#|\Anccl:|\Agloo:|\A\[param\|cuda\]")
_BACKWARD = re.compile(r"\Aautograd::engine::evaluate_function: ")
_FSDP = re.compile(r"\AFSDP::\w+ \((?P<module>.+)\)\Z")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attribution:
    """For each row of a timeline the row that it is attributed to, -1 where the file does not tell.

    `operator`: the innermost operator, `outer`: the outermost; `module`: a frame `nn.Module: ...` or a range that
    names one; `line`: the user's innermost frame; `annotation`: the user's innermost range.
    """

    operator: NDArray[np.int64]
    outer: NDArray[np.int64]
    module: NDArray[np.int64]
    line: NDArray[np.int64]
    annotation: NDArray[np.int64]


@lru_cache(maxsize=2)  # as `launches.launch_of`
def attribute(timeline: Timeline) -> Attribution:
    """Attribute every row; a host row is attributed to the ranges around itself."""
    launch = launch_of(timeline)
    at = np.where(launch >= 0, launch, np.arange(len(timeline)))
    is_operator = timeline.category == Category.CPU_OP
    wrapper = is_operator & rows_named(timeline, (bool(_BACKWARD.match(name)) for name in timeline.strings))
    operator = enclosing(timeline, at, is_operator)
    lost = np.flatnonzero((operator < 0) & (timeline.external >= 0))
    operator[lost] = _by_external(timeline, lost)
    outer = outermost(timeline, operator, is_operator & ~wrapper)
    outer = np.where(outer >= 0, outer, operator)
    forward = _forward_of(timeline, operator, is_operator)
    context = np.where(forward >= 0, forward, np.where(operator >= 0, operator, at))
    module = _first(timeline, (context, at), _is_module(timeline))
    line = _first(timeline, (context, at), _is_line(timeline))
    return Attribution(
        operator=operator, outer=outer, module=module, line=line,
        annotation=enclosing(timeline, at, _is_note(timeline)),
    )  # fmt: skip


def operator_names(timeline: Timeline) -> NDArray[np.object_]:
    """For each row the name of its outermost operator, "" without one; a backward node without autograd's wrapper."""
    return _names(timeline, attribute(timeline).outer, lambda name: _BACKWARD.sub("", name))


def module_names(timeline: Timeline) -> NDArray[np.object_]:
    """For each row the module that it works for (`Linear_0`, or `b.0` as FSDP names it), "" when unknown."""
    return _names(timeline, attribute(timeline).module, _module_name)


def line_names(timeline: Timeline) -> NDArray[np.object_]:
    """For each row the user's line (`train.py(12): forward`), "" when unknown."""
    return _names(timeline, attribute(timeline).line, lambda name: name)


@lru_cache(maxsize=2)  # as `launches.launch_of`
def place_names(timeline: Timeline) -> NDArray[np.object_]:
    """For each row its source line, else its module, else its outermost operator, "" when the file tells none."""
    line, module, operator = line_names(timeline), module_names(timeline), operator_names(timeline)
    found = np.where(line != "", line, np.where(module != "", module, operator))
    found.flags.writeable = False
    return found


def has_lines(timeline: Timeline) -> bool:
    """Whether the file has Python frames, so that lines can be named."""
    return bool((timeline.category == Category.PYTHON).any())


def annotations_of(timeline: Timeline, row: int) -> tuple[str, ...]:
    """Names of all ranges of the user around what launched a row, the innermost first."""
    launch, parents = launch_of(timeline), parent_of(timeline)
    at, found = int(launch[row]) if launch[row] >= 0 else row, []
    while at >= 0:
        if timeline.category[at] == Category.ANNOTATION:
            found.append(timeline.strings[timeline.name[at]])
        at = int(parents[at])
    return tuple(found)


def _by_external(timeline: Timeline, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The operator with the same external id on the same rank: for files whose calls are on threads of their own."""
    found = np.full(len(rows), -1, np.int64)
    operators = np.flatnonzero((timeline.category == Category.CPU_OP) & (timeline.external >= 0))
    for rank in np.unique(timeline.rank[rows]).tolist():
        mine, theirs = timeline.rank[rows] == rank, operators[timeline.rank[operators] == rank]
        if not len(theirs):
            continue
        theirs = theirs[np.argsort(timeline.external[theirs], kind="stable")]
        ids, wanted = timeline.external[theirs], timeline.external[rows[mine]]
        place = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        found[mine] = np.where(ids[place] == wanted, theirs[place], -1)
    return found


def _forward_of(timeline: Timeline, operator: NDArray[np.int64], is_operator: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For rows inside a node of autograd the forward operator of the same sequence number; -1 for others."""
    backward = is_operator & rows_named(timeline, (bool(_BACKWARD.match(name)) for name in timeline.strings))
    node = enclosing(timeline, operator, backward)
    inside = enclosing(timeline, np.arange(len(timeline)), backward) >= 0
    forward = np.flatnonzero(is_operator & ~inside & (timeline.sequence >= 0))
    found = np.full(len(timeline), -1, np.int64)
    for rank in timeline.ranks:
        theirs = forward[timeline.rank[forward] == rank]
        mine = np.flatnonzero((node >= 0) & (timeline.rank == rank))
        mine = mine[timeline.sequence[node[mine]] >= 0]
        if not len(theirs) or not len(mine):
            continue
        theirs = theirs[np.argsort(timeline.sequence[theirs], kind="stable")]
        # Of nested operators with one number the last to start is the one that autograd recorded.
        ids, wanted = timeline.sequence[theirs], timeline.sequence[node[mine]]
        place = np.maximum(np.searchsorted(ids, wanted, side="right") - 1, 0)
        found[mine] = np.where(ids[place] == wanted, theirs[place], -1)
    return found


def _first(timeline: Timeline, starts: tuple[NDArray[np.int64], ...], wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
    found = enclosing(timeline, starts[0], wanted)
    for other in starts[1:]:
        missing = np.flatnonzero(found < 0)
        found[missing] = enclosing(timeline, other[missing], wanted)
    return found


def _is_module(timeline: Timeline) -> NDArray[np.bool_]:
    named = rows_named(timeline, (bool(_MODULE.match(n) or _FSDP.match(n)) for n in timeline.strings))
    kind: NDArray[np.bool_] = np.isin(timeline.category, (Category.PYTHON, Category.ANNOTATION))
    return named & kind


def _is_line(timeline: Timeline) -> NDArray[np.bool_]:
    named = rows_named(timeline, (bool(_FRAME.match(n)) and not _NOT_THE_USERS.search(n) for n in timeline.strings))
    kind: NDArray[np.bool_] = timeline.category == Category.PYTHON
    return named & kind


def _is_note(timeline: Timeline) -> NDArray[np.bool_]:
    named = rows_named(timeline, (not _MARKS.match(name) for name in timeline.strings))
    kind: NDArray[np.bool_] = timeline.category == Category.ANNOTATION
    return named & kind


def _module_name(name: str) -> str:
    fsdp = _FSDP.match(name)
    return fsdp["module"] if fsdp else _MODULE.sub("", name)


def _names(timeline: Timeline, rows: NDArray[np.int64], spelled: Callable[[str], str]) -> NDArray[np.object_]:
    words = np.array([spelled(name) for name in timeline.strings] + [""], object)
    ids = np.where(rows >= 0, timeline.name[rows], len(timeline.strings))
    return words[ids]
