import io
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.timeline.error import TraceError
from kit.timeline.plain_pickle import load_plain

HERE = Path("rank0.pkl")
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
    max_leaves=20,
)


class Hostile:
    """Runs a command when it is unpickled freely."""

    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/kit-was-here",)


@settings(max_examples=60)
@given(PLAIN, st.integers(0, 5))
def test_plain_data_of_every_protocol_is_loaded(value: Any, protocol: int) -> None:
    raw = pickle.dumps(value, protocol)
    assert load_plain(raw, HERE) == value


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_something_is_refused_before_it_does(protocol: int) -> None:
    ran = Path("/tmp/kit-was-here")
    ran.unlink(missing_ok=True)
    with pytest.raises(TraceError, match=r"^rank0\.pkl: refused: its pickle holds (STACK_)?GLOBAL"):
        load_plain(pickle.dumps({"entries": [Hostile()]}, protocol), HERE)
    assert not ran.exists()


def bomb_of_memo() -> bytes:
    return b"\x80\x02]r" + struct.pack("<I", 2**31 - 1) + b"."


def bomb_of_bytearray() -> bytes:
    return b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"."


def bomb_of_references() -> bytes:
    """Forty lists, each of which holds the one before it twice."""
    out = io.BytesIO()
    out.write(b"\x80\x02]q\x00")
    for number in range(40):
        out.write(b"](h%ch%ceq%c" % (number, number, number + 1))
    out.write(b".")
    return out.getvalue()


@pytest.mark.parametrize("bomb", [bomb_of_memo, bomb_of_bytearray, bomb_of_references])
def test_a_few_bytes_that_stand_for_gigabytes_are_refused(bomb: Any) -> None:
    with pytest.raises(TraceError, match=r"^rank0\.pkl: "):
        load_plain(bomb(), HERE)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_pickle_is_loaded_or_refused(draw: st.DataObject) -> None:
    raw = bytearray(pickle.dumps({"version": "2.10", "entries": [{"a": [1, 2], "b": ("x", None)}] * 3}, 2))
    for _ in range(draw.draw(st.integers(1, 4))):
        raw[draw.draw(st.integers(0, len(raw) - 1))] = draw.draw(st.integers(0, 255))
    try:
        load_plain(bytes(raw[: draw.draw(st.integers(0, len(raw)))]), HERE)
    except TraceError as error:
        assert str(error).startswith("rank0.pkl: ")
