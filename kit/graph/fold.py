"""Fold identical neighbours among numbered modules: `blocks.0` to `blocks.11` become one, "x12".

A run of blocks folds only when each block of the run does the same operators on the same shapes in the
same phase (and the same part of a cut). The first block of a run stands for all; edges from one block
of a run to the next are its loop and are left out of the folded graph.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.graph.record import Graph

_NUMBERED = re.compile(r"^(.*?)(?:^|(?<=\.))(\d+)(?=\.|$)")

Block = tuple[str, str]  # (lane of the block, module path up to the number without it)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fold:
    """`stands_for` [n]: the row drawn in place of each row (itself when not folded).
    `block` [n]: number of the block a row belongs to in its run, -1 outside runs.
    `run` [n]: number of the run, -1 outside. `first` and `last`: block numbers of each run, by run.
    """

    stands_for: NDArray[np.int64]
    block: NDArray[np.int32]
    run: NDArray[np.int32]
    first: tuple[int, ...]
    last: tuple[int, ...]


def no_fold(n: int) -> Fold:
    """The fold that folds nothing."""
    none = np.full(n, -1, np.int32)
    return Fold(stands_for=np.arange(n, dtype=np.int64), block=none, run=none.copy(), first=(), last=())


def fold_blocks(
    graph: Graph, *, rows: NDArray[np.int64], lane_of: Sequence[object], modules: Sequence[str], at_least: int = 3
) -> Fold:
    """Fold runs of `at_least` and more identical blocks among `rows`; `lane_of` rows never mix in a run.

    `modules`: the module path of each row. Only the outermost number of a path counts.
    """
    blocks: dict[tuple[object, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in rows.tolist():
        found = _NUMBERED.match(modules[row])
        if found:
            blocks[lane_of[row], found.group(1)][int(found.group(2))].append(row)
    fold = no_fold(len(graph))
    first: list[int] = []
    last: list[int] = []
    for members in blocks.values():
        for run in _runs(graph, members, modules, at_least):
            for number in run:
                mine = np.array(members[number])
                fold.stands_for[mine] = members[run[0]]
                fold.block[mine] = number
                fold.run[mine] = len(first)
            first.append(run[0])
            last.append(run[-1])
    return Fold(stands_for=fold.stands_for, block=fold.block, run=fold.run, first=tuple(first), last=tuple(last))


def _runs(graph: Graph, members: dict[int, list[int]], modules: Sequence[str], at_least: int) -> list[list[int]]:
    """Runs of consecutive block numbers that do the same."""
    does = {
        number: tuple(
            (_inside(modules[row]), graph.kinds[row], graph.targets[row], graph.shapes[row], graph.groups[row])
            for row in rows
        )
        for number, rows in members.items()
    }
    runs: list[list[int]] = []
    for number in sorted(members):
        if runs and runs[-1][-1] == number - 1 and does[number] == does[number - 1]:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [run for run in runs if len(run) >= at_least]


def _inside(module: str) -> str:
    found = _NUMBERED.match(module)
    return module[found.end() :] if found else module


def folded_name(module: str, first: int, last: int) -> str:
    """`blocks.0.attn` of a run 0 to 11 as `blocks.0-11.attn`."""
    return _NUMBERED.sub(lambda found: f"{found.group(1)}{first}-{last}", module, count=1)
