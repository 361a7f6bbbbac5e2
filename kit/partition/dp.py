"""The exact contiguous cut of a chain: fewest bytes with every part within a limit.

Dynamic programming over f[p][j], the fewest bytes that p parts of the first j positions read from
before their starts. bytes[i] of interval [i, j) is kept up to date while j grows, so the cost is
O(k n w) for windows of w positions that fit the limit. Among cuts of equal bytes the one with the
lightest heaviest part is returned; both hold for every prefix, so the result is optimal for the order.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.partition.chain import Chain

_NEVER = 1e300
_ROUNDING = 1e-9  # sums of seconds in another order may differ by this share
EPS_STEP = 0.01


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Boundaries:
    """Part p is positions [starts[p], starts[p + 1]); `starts` has parts + 1 entries.

    `limit_eps` is the tolerance that the cut was searched under, `bytes_crossing` its cost.
    """

    starts: NDArray[np.int64]
    bytes_crossing: int
    heaviest: float
    limit_eps: float


def cheapest(chain: Chain, *, parts: int, eps: float) -> Boundaries:
    """The contiguous cut into `parts` non-empty parts that crosses the fewest bytes.

    No part weighs more than (1 + eps) x total / parts; when no cut does, eps is relaxed in steps of
    0.01 to the first that one meets. Needs `1 <= parts <= len(chain)`.
    """
    eps = feasible_eps(chain, parts=parts, eps=eps)
    mean = total_load(chain) / parts
    found = _cheapest_within(chain, parts, (1 + eps) * mean * (1 + _ROUNDING))
    if found is None:  # feasible_eps found a cut, so this is an error of ours
        raise RuntimeError(f"no cut into {parts} parts at eps {eps:.2f}, though a greedy one exists")
    starts, crossing, heaviest = found
    return Boundaries(starts=starts, bytes_crossing=crossing, heaviest=heaviest, limit_eps=eps)


def total_load(chain: Chain) -> float:
    """What the whole chain weighs as one part."""
    first = chain.shared_loads.after < 0
    return float(chain.loads.sum() + chain.shared_loads.amounts[first].sum())


def feasible_eps(chain: Chain, *, parts: int, eps: float) -> float:
    """`eps`, or the first of eps + 0.01, eps + 0.02, ... for which a cut into `parts` parts exists."""
    mean = total_load(chain) / parts
    if parts_needed(chain, limit=(1 + eps) * mean) <= parts:
        return eps
    low, high = (
        0,
        math.ceil((parts - 1) / EPS_STEP) + 1,
    )  # one part holding everything is parts - 1 above the mean
    while high - low > 1:
        middle = (low + high) // 2
        if parts_needed(chain, limit=(1 + eps + middle * EPS_STEP) * mean) <= parts:
            high = middle
        else:
            low = middle
    return eps + high * EPS_STEP


def parts_needed(chain: Chain, *, limit: float) -> float:
    """The fewest contiguous parts of at most `limit` each; infinite when one position alone is heavier."""
    limit *= 1 + _ROUNDING
    parts, start, load = 1, 0, 0.0
    first = chain.shared_loads.start.tolist()
    after, amounts = chain.shared_loads.after.tolist(), chain.shared_loads.amounts.tolist()
    for position, own in enumerate(chain.loads.tolist()):
        shared_here = range(first[position], first[position + 1])
        grown = load + own + sum(amounts[step] for step in shared_here if after[step] < start)
        if grown > limit and position > start:
            parts, start = parts + 1, position
            grown = own + sum(amounts[step] for step in shared_here)
        if grown > limit:
            return math.inf
        load = grown
    return parts


def _cheapest_within(chain: Chain, parts: int, limit: float) -> tuple[NDArray[np.int64], int, float] | None:
    """Starts, bytes and heaviest load of the best cut with no part above `limit`."""
    n = len(chain)
    bytes_read, load = np.zeros(n), np.zeros(n)  # of interval [i, j), by i
    cost = np.full((parts + 1, n + 1), _NEVER)
    heaviest = np.full((parts + 1, n + 1), _NEVER)
    cost[0, 0] = heaviest[0, 0] = 0.0
    best_start = np.zeros((parts + 1, n + 1), dtype=np.int64)
    low = 0
    for j in range(n):
        load[low : j + 1] += chain.loads[j]
        _add(load, chain.shared_loads.start, chain.shared_loads.after, chain.shared_loads.amounts, j, low)
        _add(bytes_read, chain.reads.start, chain.reads.after, chain.reads.amounts, j, low)
        while low <= j and load[low] > limit:
            low += 1
        if low > j:
            return None
        total = cost[:-1, low : j + 1] + bytes_read[low : j + 1]
        least = total.min(axis=1)
        slowest = np.maximum(heaviest[:-1, low : j + 1], load[low : j + 1])
        choice = np.where(total <= least[:, None], slowest, np.inf).argmin(axis=1)
        rows = np.arange(parts)
        cost[1:, j + 1] = np.minimum(least, _NEVER)
        heaviest[1:, j + 1] = slowest[rows, choice]
        best_start[1:, j + 1] = choice + low
    if cost[parts, n] >= _NEVER:
        return None
    starts = np.full(parts + 1, n, dtype=np.int64)
    for part in range(parts, 0, -1):
        starts[part - 1] = best_start[part, starts[part]]
    return starts, round(float(cost[parts, n])), float(heaviest[parts, n])


def _add(
    sums: NDArray[np.float64],
    start: NDArray[np.int64],
    after: NDArray[np.int64],
    amounts: NDArray[np.float64],
    position: int,
    low: int,
) -> None:
    """Add the steps of `position` to the intervals that start after what the step depends on."""
    for step in range(start[position], start[position + 1]):
        sums[max(after[step] + 1, low) : position + 1] += amounts[step]
