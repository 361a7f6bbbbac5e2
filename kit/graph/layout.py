"""Place nodes in linear time: layered inside lanes, no dummy nodes.

Training graphs are near-chains with long edges from forward to backward; a classic layered layout adds
a dummy node for each layer an edge crosses (4.4 million for a 48-layer GPT-2) and never returns. Here
layers are longest paths, order inside a layer follows barycentres, and long edges are left to be drawn
as arcs. Lanes stand side by side: the phases of a step (forward runs down, backward up beside it, so
that a saved activation is a short horizontal edge), or the parts of a cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.graph.record import Graph, Kind, Phase

_SWEEPS = 4
_LANE_GAP = 0.3  # in node widths, between lanes
_ARC_ROOM = 0.15  # inside a lane, for the arcs at its right side


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """Where nodes stand. Columns of length n: `x` in node widths and `y` in rows, of the node's centre;
    `layer`: longest path to the node inside its lane; `lane`: column of the picture.

    Columns of length lanes: `lane_left` and `lane_right` in node widths, `lane_up`: runs bottom to top.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float32]
    layer: NDArray[np.int32]
    lane: NDArray[np.int32]
    lane_left: NDArray[np.float32]
    lane_right: NDArray[np.float32]
    lane_up: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.x)


def lay_out(graph: Graph, *, parts: Sequence[int] | None = None, wide: int = 3) -> Layout:
    """The layout of a graph record; time grows linearly with nodes and edges (50 thousand: 0.3 s).

    Lanes are the phases, or the `parts` when given (one number a node). At most `wide` nodes of one
    layer stand side by side, more of them continue on the next row. Communication stands in a column of
    its own at the side of its lane.
    """
    order = {phase: number for number, phase in enumerate(Phase)}
    keys = parts if parts is not None else [order[phase] for phase in graph.phases]
    present, lane = np.unique(np.asarray(keys, np.int64).reshape(-1), return_inverse=True)
    up = np.zeros(len(present), bool) if parts is not None else present == order[Phase.BACKWARD]
    aside = np.array([kind in (Kind.COLLECTIVE, Kind.WAIT) for kind in graph.kinds], bool)
    return place(
        lane=lane.astype(np.int32),
        lane_up=up,
        edge_from=graph.edge_from,
        edge_to=graph.edge_to,
        aside=aside,
        wide=wide,
    )


def layers(n: int, edge_from: NDArray[np.int32], edge_to: NDArray[np.int32]) -> NDArray[np.int32]:
    """The longest path, in edges, from a start to each node [n]; edges run from lower to higher rows."""
    layer = [0] * n
    by_end = np.argsort(edge_to, kind="stable")
    for source, target in zip(edge_from[by_end].tolist(), edge_to[by_end].tolist(), strict=True):
        if layer[source] >= layer[target]:
            layer[target] = layer[source] + 1
    return np.array(layer, np.int32).reshape(-1)


def place(
    *,
    lane: NDArray[np.int32],
    lane_up: NDArray[np.bool_],
    edge_from: NDArray[np.int32],
    edge_to: NDArray[np.int32],
    aside: NDArray[np.bool_],
    wide: int = 3,
) -> Layout:
    """Lay out nodes whose lanes are known. `aside` [n]: stands in the side column of its lane."""
    if wide < 1:
        raise ValueError(f"wide={wide}; expected at least 1 node side by side")
    n, lanes = len(lane), len(lane_up)
    same = lane[edge_from] == lane[edge_to]
    inner_from, inner_to = edge_from[same], edge_to[same]
    layer = _pull_to_reader(layers(n, inner_from, inner_to), inner_from, inner_to, aside)
    column = lane * 2 + aside  # a lane has two columns, compute and communication
    slot = _order(column, layer, edge_from, edge_to)
    x, y = np.zeros(n), np.zeros(n)
    left, right = np.zeros(lanes), np.zeros(lanes)
    edge = 0.0
    for number in range(lanes):
        mine = np.flatnonzero(lane == number)
        y[mine], width = _rows(layer[mine], aside[mine], slot[mine], wide)
        deepest, many = float(y[mine[~aside[mine]]].max(initial=0.0)), int(aside[mine].sum())
        y[mine] *= min(2.0, max(1.0, (many - 1) / deepest)) if deepest else 1.0
        beside = (lane[inner_to] == number) & aside[inner_from] & aside[inner_to]
        _stack_side(y, mine[aside[mine]], inner_from[beside], inner_to[beside])
        x[mine], span = _across(slot[mine], aside[mine], wide, width, first=bool(number == 0 and lanes > 1))
        x[mine] += edge
        left[number], right[number] = edge, edge + span
        edge += span + _LANE_GAP
    _even_heights(y, lane, lane_up)
    return Layout(
        x=x.astype(np.float32),
        y=y.astype(np.float32),
        layer=layer,
        lane=lane,
        lane_left=left.astype(np.float32),
        lane_right=right.astype(np.float32),
        lane_up=lane_up,
    )


def _pull_to_reader(
    layer: NDArray[np.int32], edge_from: NDArray[np.int32], edge_to: NDArray[np.int32], aside: NDArray[np.bool_]
) -> NDArray[np.int32]:
    """Move what depends on nothing (a gather of parameters and its wait) down to its first reader."""
    n = len(layer)
    free = [True] * n
    sources, targets, side = edge_from.tolist(), edge_to.tolist(), aside.tolist()
    for at in np.argsort(edge_to, kind="stable").tolist():
        if not (side[targets[at]] and free[sources[at]]):
            free[targets[at]] = False
    lowest = [-1] * n
    result: list[int] = layer.tolist()
    for at in np.argsort(-edge_from, kind="stable").tolist():
        source, target = sources[at], targets[at]
        if free[source] and (lowest[source] < 0 or result[target] - 1 < lowest[source]):
            lowest[source] = result[target] - 1
            result[source] = max(int(layer[source]), lowest[source])
    return np.array(result, np.int32).reshape(-1)


def _order(
    column: NDArray[np.int32], layer: NDArray[np.int32], edge_from: NDArray[np.int32], edge_to: NDArray[np.int32]
) -> NDArray[np.int64]:
    """The place of each node among those of its column and layer, by the mean place of its neighbours."""
    n = len(layer)
    if not n:
        return np.zeros(0, np.int64)
    near = np.arange(n, dtype=np.float64)
    slot, middle = _ranks(column, layer, near)
    for sweep in range(_SWEEPS):
        reads, read = (edge_from, edge_to) if sweep % 2 == 0 else (edge_to, edge_from)
        count = np.bincount(read, minlength=n)
        mean = np.bincount(read, weights=middle[reads], minlength=n) / np.maximum(count, 1)
        slot, middle = _ranks(column, layer, np.where(count > 0, mean, middle))
    return slot


def _ranks(
    column: NDArray[np.int32], layer: NDArray[np.int32], near: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(rank, rank from the middle) of each node among those of the same column and layer."""
    by = np.lexsort((near, layer, column))
    new = np.ones(len(by), bool)
    new[1:] = (np.diff(column[by]) != 0) | (np.diff(layer[by]) != 0)
    start = np.flatnonzero(new)
    group = np.cumsum(new) - 1
    size = np.diff(np.append(start, len(by)))
    slot = np.empty(len(by), np.int64)
    slot[by] = np.arange(len(by)) - start[group]
    middle = np.empty(len(by))
    middle[by] = slot[by] - (size[group] - 1) / 2
    return slot, middle


def _rows(
    layer: NDArray[np.int32], aside: NDArray[np.bool_], slot: NDArray[np.int64], wide: int
) -> tuple[NDArray[np.float64], int]:
    """Rows of one lane's nodes, and how many stand side by side at most."""
    main = np.flatnonzero(~aside)
    row = np.zeros(len(layer))
    height = np.zeros(int(layer.max(initial=-1)) + 1, np.int64)
    height[np.unique(layer)] = 1
    np.maximum.at(height, layer[main], slot[main] // wide + 1)
    top = np.cumsum(height) - height
    row[main] = top[layer[main]] + slot[main] // wide
    row[aside] = top[layer[aside]]
    return row, int(min(wide, slot[main].max(initial=-1) + 1))


def _stack_side(
    y: NDArray[np.float64],
    rows: NDArray[np.int64],
    edge_from: NDArray[np.int32],
    edge_to: NDArray[np.int32],
) -> None:
    """Spread the nodes of one side column so that none overlap and a wait stands under its collective."""
    mine = set(rows.tolist())
    follows: dict[int, int] = {}
    for source, target in zip(edge_from.tolist(), edge_to.tolist(), strict=True):
        if source in mine and target in mine:
            follows.setdefault(source, target)
    heads = [row for row in rows.tolist() if row not in set(follows.values())]
    lowest = -1.0
    for head in sorted(heads, key=lambda row: (y[row], row)):
        row: int | None = head
        while row is not None and row in mine:
            mine.discard(row)
            y[row] = lowest = max(lowest + 1, y[row] if row == head else lowest + 1)
            row = follows.get(row)


def _across(
    slot: NDArray[np.int64], aside: NDArray[np.bool_], wide: int, width: int, *, first: bool
) -> tuple[NDArray[np.float64], float]:
    """Centres inside one lane and the width of the lane; the first lane has its side column left."""
    side = 1.0 if aside.any() else 0.0
    shift = side if first else 0.0
    return np.where(aside, 0.5 if first else width + 0.5, shift + slot % wide + 0.5), width + side + _ARC_ROOM


def _even_heights(y: NDArray[np.float64], lane: NDArray[np.int32], lane_up: NDArray[np.bool_]) -> None:
    """Stretch forward and backward to one height and turn the lanes that run up."""
    if not len(y):
        return
    height = np.zeros(len(lane_up))
    np.maximum.at(height, lane, y)
    partners = lane_up | np.roll(lane_up, -1)  # a lane that runs up, and the one before it
    full = height[partners].max(initial=0.0)
    for number in np.flatnonzero(partners):
        mine = lane == number
        if height[number] > 0:
            y[mine] *= full / height[number]
        if lane_up[number]:
            y[mine] = full - y[mine]
    for number in np.flatnonzero(~partners) if partners.any() else ():
        y[lane == number] += max(0.0, full - height[number]) / 2
