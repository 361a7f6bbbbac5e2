from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.timeline.exact import (
    NO_TIME,
    AbsoluteTimeError,
    as_int,
    integers,
    integers_of_ints,
    nanoseconds,
    require_exact,
)


@given(st.lists(st.integers(-(2**70), 2**70) | st.sampled_from([-1, -(2**63), 2**63 - 1, -(2**62), 2**62])))
def test_ints_are_the_same_on_the_quick_way(values: list[int]) -> None:
    assert integers_of_ints(values).tolist() == integers(values).tolist()
    assert integers(values).tolist() == [as_int(value) for value in values]


@given(st.lists(st.integers(0, 8_796_093_022_207_999)))
def test_floats_and_decimals_of_three_digits_give_the_same_nanoseconds(times: list[int]) -> None:
    texts = [f"{time // 1000}.{time % 1000:03d}" for time in times]
    assert nanoseconds([float(text) for text in texts]).tolist() == times
    assert nanoseconds([Decimal(text) for text in texts]).tolist() == times


@pytest.mark.parametrize("time", [None, float("nan"), float("inf"), -1e300, Decimal("1e999999"), Decimal("NaN")])
def test_what_is_no_time_is_marked(time: Any) -> None:
    assert nanoseconds([time]).tolist() == [NO_TIME]


def test_times_too_large_for_floats_are_noticed() -> None:
    require_exact([0.0, None, 8796093022207.999])
    with pytest.raises(AbsoluteTimeError):
        require_exact([1.0, 8796093022208.0])
    assert np.array([], np.int64).tolist() == nanoseconds([]).tolist()
