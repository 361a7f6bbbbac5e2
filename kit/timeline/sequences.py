"""Kernel sequences that come again and again on a stream: what fusion or a CUDA graph would gain most from.

All runs of `length` consecutive kernels of one stream are counted; HolisticTraceAnalysis does the same under one
operator, which is `operator=` here. Sequences that mostly repeat kernels of one with more time (shifts of a loop, parts
of a longer run) are left out. Collectives are left out too: they wait, so nothing follows them closely.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.timeline.kernel_kinds import short_name
from kit.timeline.kinds import communication_kernels
from kit.timeline.launches import launch_of
from kit.timeline.nesting import enclosing
from kit.timeline.record import Category, Timeline
from kit.timeline.rows import Measured

_TOLD_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRow:
    """A sequence of kernels on one rank.

    `count`: occurrences that do not overlap. `kernels_ns`: time inside the kernels of all occurrences. `gaps_ns`:
    the median over occurrences of the time between their kernels, times `count`: the most that one launch would save.
    """

    rank: int
    length: int
    count: int
    kernels_ns: int
    gaps_ns: int
    sequence: str


def sequences(
    timeline: Timeline, *, shortest: int = 3, longest: int = 8, operator: str = "", most: int = 20
) -> Measured[SequenceRow]:
    """The `most` sequences of `shortest` to `longest` kernels with most time, that come at least twice, by rank.

    `operator`: only kernels launched inside operators or ranges whose name contains it.
    Raises `ValueError` unless 2 <= shortest <= longest.
    """
    if not 2 <= shortest <= longest:
        raise ValueError(f"sequences() got shortest={shortest}, longest={longest}; expected 2 <= shortest <= longest")
    words = [short_name(name) for name in timeline.strings]
    table, ids = np.unique(np.array([*words, ""], object).astype(str), return_inverse=True)
    wanted = (timeline.category == Category.KERNEL) & ~communication_kernels(timeline) & _inside(timeline, operator)
    rows: list[SequenceRow] = []
    for rank in timeline.ranks:
        mine = np.arange(len(timeline))[timeline.rows_of(rank)]
        mine = mine[wanted[mine]]
        place = timeline.device[mine].astype(np.int64) << 40 | (timeline.stream[mine] & ((1 << 40) - 1))
        order = np.lexsort((timeline.start_ns[mine], place))
        mine, place = mine[order], place[order]
        found = _of_rank(timeline, rank, mine, place, ids[timeline.name[mine]], table, (shortest, longest))
        rows += sorted(found, key=lambda row: -row.kernels_ns)[:most]
    return Measured(name="sequences", rows=tuple(rows))


def _inside(timeline: Timeline, operator: str) -> NDArray[np.bool_]:
    if not operator:
        return np.ones(len(timeline), np.bool_)
    named = np.array([operator in name for name in timeline.strings] + [False])[timeline.name]
    named &= np.isin(timeline.category, (Category.CPU_OP, Category.ANNOTATION))
    return enclosing(timeline, np.asarray(launch_of(timeline)), named) >= 0


def _of_rank(
    timeline: Timeline,
    rank: int,
    rows: NDArray[np.int64],
    place: NDArray[np.int64],
    word: NDArray[np.int64],
    table: NDArray[np.str_],
    lengths: tuple[int, int],
) -> list[SequenceRow]:
    """Count runs length by length: a run's number is that of the run one shorter and of its last word."""
    candidates: list[tuple[int, int, NDArray[np.int64]]] = []
    run = np.unique(word, return_inverse=True)[1].astype(np.int64)
    took = np.concatenate([[0], np.cumsum(timeline.duration_ns[rows])])
    for length in range(2, lengths[1] + 1):
        count = len(rows) - length + 1
        if count < 2:
            break
        code = run[:count] * (len(table) + 1) + word[length - 1 :]
        code = np.where((place[:count] == place[length - 1 :]) & (run[:count] >= 0), code, -1)
        run = np.unique(code, return_inverse=True)[1].astype(np.int64)
        run[code < 0] = -1
        if length >= lengths[0]:
            candidates += [
                (int((took[starts + length] - took[starts]).sum()), length, starts) for starts in _repeated(run, length)
            ]
    candidates.sort(key=lambda entry: (-entry[0], entry[1]))
    found, told = [], np.zeros(len(rows), np.bool_)
    for _, length, starts in candidates:
        members = starts[:, None] + np.arange(length)
        if told[members].mean() < _TOLD_SHARE:
            told[members] = True
            text = " > ".join(table[word[starts[0] : starts[0] + length]])
            found.append(_row(timeline, rank, rows, starts, length, text))
    return found


def _repeated(run: NDArray[np.int64], length: int) -> list[NDArray[np.int64]]:
    """Starts of occurrences that do not overlap, of the hundred most frequent runs that come at least twice."""
    order = np.argsort(run, kind="stable")
    order = order[run[order] >= 0]
    edges = np.flatnonzero(np.diff(run[order])) + 1
    pieces = [piece for piece in np.split(order, edges) if len(piece) > 1]
    pieces.sort(key=len, reverse=True)
    found = []
    for piece in pieces[:100]:
        apart = piece if (np.diff(piece) >= length).all() else _apart(piece, length)
        if len(apart) > 1:
            found.append(apart)
    return found


def _apart(starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    kept, free = [], -1
    for start in starts.tolist():
        if start >= free:
            kept.append(start)
            free = start + length
    return np.array(kept, np.int64)


def _row(
    timeline: Timeline, rank: int, rows: NDArray[np.int64], starts: NDArray[np.int64], length: int, text: str
) -> SequenceRow:
    members = rows[starts[:, None] + np.arange(length)]
    begin, took = timeline.start_ns[members], timeline.duration_ns[members]
    gaps = np.clip(begin[:, 1:] - (begin + took)[:, :-1], 0, None).sum(axis=1)
    return SequenceRow(
        rank=rank,
        length=length,
        count=len(starts),
        kernels_ns=int(took.sum()),
        gaps_ns=int(np.median(gaps) * len(starts)),
        sequence=text,
    )
