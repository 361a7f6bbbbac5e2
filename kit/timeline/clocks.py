"""Estimate how far the clocks of ranks are apart, from the ends of matched collectives, and set them right.

All ranks of a collective end together (within 28 us, measured on one host), so the median difference of ends is the
difference of the clocks, whoever came late. It is a constant shift only if the differences are alike: their spread
and the drift say so. Ranks without a common collective are reached over others.
"""

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kit.timeline.match import CLOCK_TOLERANCE_NS, Matching, match
from kit.timeline.record import Timeline
from kit.timeline.rows import Measured

# Ends differ by microseconds: over less than a second that reads as tens of millionths of drift.
_LEAST_FOR_DRIFT, _LEAST_DRIFT_NS = 8, 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRow:
    """The clock of one rank against that of `reference`.

    `ahead_ns`: how much later the rank's clock shows the same moment (median). `spread_ns`: middle half of the
    differences. `drift_ppm`: their slope over time in millionths, None for fewer than 8
    collectives or less than a second.
    `is_constant`: the spread is under 1 ms, so that a shift sets the clocks right; else the match is wrong, the clocks
    drift, or the profiles began at different steps.
    """

    rank: int
    reference: int
    collectives: int
    ahead_ns: int
    spread_ns: int
    drift_ppm: float | None
    is_constant: bool


def clocks(timeline: Timeline, matching: Matching | None = None) -> Measured[ClockRow]:
    """The estimated shift of every rank that shares collectives, directly or over others, with the first rank."""
    pairs = _differences(match(timeline) if matching is None else matching)
    ranks = sorted({rank for pair in pairs for rank in pair})
    rows: list[ClockRow] = []
    placed: dict[int, ClockRow] = {}
    for root in ranks:
        if root in placed:
            continue
        placed[root] = ClockRow(
            rank=root, reference=root, collectives=0, ahead_ns=0, spread_ns=0, drift_ppm=None, is_constant=True
        )
        queue = [root]
        while queue:
            here = queue.pop(0)
            for there in ranks:
                if there not in placed and (here, there) in pairs:
                    placed[there] = _against(placed[here], there, *pairs[here, there])
                    queue.append(there)
    rows = [placed[rank] for rank in ranks]
    notes = [
        f"rank {row.rank}: ends of the same collectives lie {row.spread_ns / 1e6:.3f} ms around their median, so no "
        "constant shift sets its clock right"
        for row in rows
        if not row.is_constant
    ]
    return Measured(name="clocks", rows=tuple(rows), notes=tuple(notes))


def aligned(timeline: Timeline) -> Timeline:
    """The timeline with each rank's times shifted to the clock of its reference; the notes say by how much.

    Raises `ValueError` when a rank's clock is no constant shift away: then no shift makes its times comparable.
    """
    found = clocks(timeline)
    wrong = [row.rank for row in found if not row.is_constant]
    if wrong:
        raise ValueError(
            f"the clocks of ranks {wrong} are no constant shift away; expected ends of the same collectives within "
            f"{CLOCK_TOLERANCE_NS / 1e6:.0f} ms of their median. Profile the same steps on all ranks"
        )
    start = timeline.start_ns.copy()
    notes = list(timeline.notes)
    for row in found:
        if row.ahead_ns:
            start[timeline.rows_of(row.rank)] -= row.ahead_ns
            notes.append(
                f"rank {row.rank}: times moved by {-row.ahead_ns / 1e6:.3f} ms to the clock of rank {row.reference} "
                f"(median end of {row.collectives} collectives, spread {row.spread_ns / 1e3:.1f} us)"
            )
    return replace(timeline, start_ns=start, notes=tuple(notes))


def _differences(matching: Matching) -> dict[tuple[int, int], tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """For each pair of ranks (both ways): the ends on the first, and how much later they are on the second."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for collective in matching.collectives:
        for a, end_a in zip(collective.ranks, collective.end_ns, strict=True):
            for b, end_b in zip(collective.ranks, collective.end_ns, strict=True):
                if a != b:
                    found[a, b].append((end_a, end_b - end_a))
    return {
        pair: (np.array([end for end, _ in both], np.int64), np.array([later for _, later in both], np.int64))
        for pair, both in found.items()
    }


def _against(reference: ClockRow, rank: int, ends: NDArray[np.int64], later: NDArray[np.int64]) -> ClockRow:
    low, middle, high = np.percentile(later, [25, 50, 75])
    spread = int(high - low) + reference.spread_ns
    drift = None
    if len(ends) >= _LEAST_FOR_DRIFT and np.ptp(ends) >= _LEAST_DRIFT_NS:
        drift = float(
            np.polyfit((ends - ends[0]).astype(np.float64), (later - later[0]).astype(np.float64), 1)[0] * 1e6
        )
    return ClockRow(
        rank=rank, reference=reference.reference, collectives=len(ends), ahead_ns=reference.ahead_ns + round(middle),
        spread_ns=spread, drift_ppm=drift, is_constant=spread <= CLOCK_TOLERANCE_NS and reference.is_constant,
    )  # fmt: skip
