import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.timeline.columns import timeline_of
from kit.timeline.kineto import decode
from kit.timeline.pieces import IrregularError, timeline_in_pieces
from kit.timeline.record import COLUMNS, Timeline

HERE = Path("rank0.json")


def in_pieces(raw: bytes, piece_bytes: int) -> Timeline:
    return timeline_in_pieces(lambda: io.BytesIO(raw), HERE, rank=None, strict=True, piece_bytes=piece_bytes)


def assert_same(left: Timeline, right: Timeline) -> None:
    for column in COLUMNS:
        a, b = getattr(left, column), getattr(right, column)
        assert a.dtype == b.dtype, column
        assert a.tolist() == b.tolist(), column
    for name in ("parts", "strings", "lanes", "groups", "notes"):
        assert getattr(left, name) == getattr(right, name)


NUMBER = st.integers(-5, 2**66) | st.sampled_from(["7", "0x1f", 7.0, 2.5, None])
NAME = st.text(max_size=6) | st.sampled_from(['}, {"ph": "X"', '"traceEvents": [', "}]", "\\", "k"])
TIME = st.integers(0, 10**9) | st.sampled_from([0.001, 1712195495502094.565, 8796093022208.001, 1.0015, 2.5])
EVENT = st.fixed_dictionaries(
    {"ph": st.sampled_from("XXXXsM"), "name": NAME, "ts": TIME, "dur": st.sampled_from([0, 1, 0.25, 1.0015])},
    optional={
        "cat": st.sampled_from(["kernel", "cpu_op", "Trace", "odd", "", None]),
        "pid": st.sampled_from([0, 1, "1", "Spans", 1.0, "CUDA functions"]),
        "tid": st.sampled_from([0, 7, "7", 7.5]),
        "args": st.fixed_dictionaries(
            {},
            optional={
                "stream": NUMBER, "device": NUMBER, "correlation": NUMBER, "External id": NUMBER, "bytes": NUMBER,
                "In msg nelems": NUMBER, "graph id": NUMBER, "Collective name": NAME | st.none(), "dtype": NAME,
                "Process Group Name": NAME, "Process Group Ranks": st.sampled_from([[0, 1], "[0, 1]", "x"]),
                "odd": st.just([{"ph": "X", "name": "inside"}, {"ph": "X", "name": "another"}]),
            },
        ),
    },
)  # fmt: skip
HEADER = st.fixed_dictionaries(
    {},
    optional={
        "baseTimeNanoseconds": st.sampled_from([0, 5, 10**18, 2**61]),
        "distributedInfo": st.just({"rank": 0, "world_size": 2, "backend": "nccl"}),
        "deviceProperties": st.just([{"id": 0}, {"id": 1}]),
    },
)


@settings(max_examples=250, deadline=None)
@given(HEADER, st.lists(EVENT, max_size=12), HEADER, st.sampled_from([None, 1]), st.integers(20, 700))
def test_pieces_of_any_size_give_the_columns_of_the_whole(
    head: dict[str, Any], events: list[Any], tail: dict[str, Any], indent: int | None, piece_bytes: int
) -> None:
    raw = json.dumps({**head, "traceEvents": events, **{k: v for k, v in tail.items() if k not in head}}, indent=indent)
    try:
        seen = in_pieces(raw.encode(), piece_bytes)
    except IrregularError:
        return  # then the reader of whole files is asked: nothing can differ
    assert_same(seen, timeline_of(decode(raw.encode(), HERE), HERE))


@pytest.mark.parametrize("name", ["h200_ddp_eager_rank0", "h200_static_cudagraph_rank1", "gloo_functional_rank0"])
@pytest.mark.parametrize("piece_bytes", [4096, 1 << 20])
def test_captures_are_read_in_pieces_without_falling_back(data: Path, name: str, piece_bytes: int) -> None:
    raw = gzip.decompress((data / f"{name}.json.gz").read_bytes())
    assert_same(in_pieces(raw, piece_bytes), timeline_of(decode(raw, HERE), HERE))


@pytest.mark.parametrize("name", ["ns_resolution_rank0", "nccl_data", "amd_mi250", "malformed/no_gpu"])
def test_old_and_odd_traces_are_the_same_in_pieces(shared_data: Path, name: str) -> None:
    raw = gzip.decompress((shared_data / "public" / "hta" / f"{name}.json.gz").read_bytes())
    assert_same(in_pieces(raw, 1 << 16), timeline_of(decode(raw, HERE), HERE))


SPAN = '{"ph": "X", "cat": "kernel", "name": "k", "ts": AT, "dur": 1, "pid": 0, "tid": 0}'


def filled(raw: str) -> bytes:
    """The text with its spans in place."""
    return raw.replace("ONE", SPAN.replace("AT", "1")).replace("TWO", SPAN.replace("AT", "2")).encode()


@pytest.mark.parametrize(
    "raw",
    [
        '{"traceEvents": []}',
        "[]",
        "[ONE]",
        '{"a": [{"b": 1}], "traceEvents": [ONE, TWO], "z": [{"name": 1}, {"name": 2}]}',
        '\n{"traceEvents":[ONE\n,\nTWO]}\n',
    ],
)
def test_regular_layouts_need_no_second_reading(raw: str) -> None:
    assert_same(in_pieces(filled(raw), 64), timeline_of(decode(filled(raw), HERE), HERE))


@pytest.mark.parametrize(
    "raw",
    [
        '{"traceEvents": [ONE,]}',
        '{"traceEvents": [ONE}',
        '{"traceEvents": [ONE], "traceEvents": [TWO]}',
        '{"deep": {"traceEvents": [ONE]}, "traceEvents": [TWO]}',
        '{"traceEvents": [1]}',
        '{"traceEvents": [ONE]',
        '{"traceEvents": [ONE]} more',
        "[ONE] more",
        '{"a": 1}',
        "",
    ],
)
def test_what_is_not_regular_is_left_to_the_reader_of_whole_files(raw: str) -> None:
    with pytest.raises(IrregularError):
        in_pieces(filled(raw), 64)
