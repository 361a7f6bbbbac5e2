"""Whole numbers and whole nanoseconds, however a trace wrote them.

Files of ten years disagree: ids come as numbers or as text, times as floats, as absolute microseconds that no float
holds, or as nonsense. Everything becomes int64 here, so that no later module has to ask again.
"""

import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Half a unit in the last place of a float is under half a nanosecond only below this.
EXACT_BELOW_US = float(2**43)
EXACT_BELOW_NS = 1000 * 2**43
MOST_NS = 1 << 62  # sums of two times stay inside int64
NO_TIME = -MOST_NS


class AbsoluteTimeError(Exception):
    """Times of an old file: floats hold them too coarsely, decimals have to be read."""


def as_int(value: Any, missing: int = -1) -> int:
    """A whole number however the file wrote it (`7`, `"7"`, `"0x7"`, `7.0`), else `missing`; a truth value is none."""
    number: Any = missing if isinstance(value, bool) else value
    if isinstance(value, str):
        try:
            number = int(value, 10 if value.isdecimal() else 0) if len(value) < 24 else missing
        except ValueError:
            return missing
    elif isinstance(value, float | Decimal):
        number = int(value) if -MOST_NS < value < MOST_NS and value == int(value) else missing
    return number if isinstance(number, int) and -MOST_NS < number < MOST_NS else missing


def integers(values: Sequence[Any]) -> NDArray[np.int64]:
    """`as_int` of each value."""
    whole = (-1 if v is None else v if type(v) is int and -1 <= v < MOST_NS else as_int(v) for v in values)
    return np.fromiter(whole, np.int64, len(values))


def integers_of_ints(values: Sequence[int]) -> NDArray[np.int64]:
    """`integers` for values that are known to be ints: several times quicker."""
    count = len(values)
    if count and values[0] == -1 and values.count(-1) == count:
        return np.full(count, -1, np.int64)
    try:
        column = np.frombuffer(struct.pack(f"{count}q", *values), np.int64)  # quicker than np.fromiter
    except struct.error:
        return integers(values)
    in_range = (column > -MOST_NS) & (column < MOST_NS)
    return column if in_range.all() else np.where(in_range, column, -1)


def require_exact(times: Sequence[float | None]) -> None:
    """Raise `AbsoluteTimeError` when a time is too large for a float to hold its nanoseconds."""
    us = _floats(times)
    if np.any(np.abs(us) >= EXACT_BELOW_US):
        raise AbsoluteTimeError


def _floats(times: Sequence[Any]) -> NDArray[np.float64]:
    """Times as floats, NaN where there is none."""
    try:
        return np.frombuffer(struct.pack(f"{len(times)}d", *times), np.float64)  # quicker than np.array or np.fromiter
    except struct.error:
        return np.array(times, np.float64)  # takes None


def nanoseconds(times: Sequence[Any]) -> NDArray[np.int64]:
    """Microseconds (floats, or Decimals where a float is too coarse) to whole nanoseconds; `NO_TIME` where unusable."""
    first = next((time for time in times if time is not None), None)
    if isinstance(first, Decimal):
        return np.array([_exact_ns(time) for time in times], np.int64)
    us = _floats(times)
    size = np.abs(us)
    good = size < MOST_NS / 1000
    us = np.where(good, us, 0.0)
    # us * 1000 would round a second time and be 1 ns off from 2**42 us on (seen in a trace of NCCL 2.17).
    whole = np.floor(us)
    exact = whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000.0).astype(np.int64)
    return np.where(good, exact, NO_TIME)


def _exact_ns(time: Any) -> int:
    if time is None:
        return NO_TIME
    digits = Decimal(time)
    if not digits.is_finite() or (digits and digits.adjusted() > 16):
        return NO_TIME
    if digits.adjusted() < -9:
        return 0
    exact = int((digits * 1000).to_integral_value())
    return exact if abs(exact) < MOST_NS else NO_TIME
