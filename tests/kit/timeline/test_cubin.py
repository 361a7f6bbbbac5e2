"""Cubins of Triton 3.6 (its ptxas, CUDA 12.8) for sm_90a, against what NVIDIA's own tools say of them."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.timeline.cubin import read_cubin
from kit.timeline.error import TraceError

# cuobjdump --dump-resource-usage: REG and STACK; ptxas -v: "88 bytes stack frame, 96 bytes spill stores".
CUOBJDUMP = {"rows_softmax_scaled": (20, 0), "matmul_tile": (40, 88)}


def cubin(data: Path, name: str) -> bytes:
    [path] = (data / "triton").rglob(f"{name}.cubin")
    return path.read_bytes()


@pytest.mark.parametrize("name", CUOBJDUMP)
def test_registers_and_stack_are_those_of_cuobjdump(data: Path, name: str) -> None:
    [kernel] = read_cubin(cubin(data, name))
    assert (kernel.name, (kernel.registers, kernel.stack_bytes)) == (name, CUOBJDUMP[name])


def test_other_files_are_refused() -> None:
    with pytest.raises(TraceError, match=r"x\.cubin: not a cubin; expected a 64-bit ELF file of machine 190"):
        read_cubin(Path("/bin/sh").read_bytes(), source="x.cubin")
    with pytest.raises(TraceError, match="not a cubin"):
        read_cubin(b"")


@settings(max_examples=60, deadline=None)
@given(place=st.floats(0, 1), value=st.integers(0, 255), length=st.floats(0, 1))
def test_a_damaged_cubin_is_read_or_refused_with_one_error(place: float, value: int, length: float) -> None:
    whole = bytearray(cubin(Path(__file__).parents[2] / "data", "matmul_tile"))
    whole[int(place * (len(whole) - 1))] = value
    try:
        read_cubin(bytes(whole[: 64 + int(length * len(whole))]))
    except TraceError:
        return
