import gc
from decimal import Decimal
from pathlib import Path

import pytest

from kit.timeline.columns import timeline_of
from kit.timeline.error import TraceError
from kit.timeline.kineto import decode

HERE = Path("trace.json")


def start_and_end(ts: str, dur: str = "1.001") -> tuple[int, int]:
    raw = b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": %s, "dur": %s}]}'
    timeline = timeline_of(decode(raw % (ts.encode(), dur.encode()), HERE), HERE, rank=0)
    return int(timeline.start_ns[0]), int(timeline.start_ns[0] + timeline.duration_ns[0])


@pytest.mark.parametrize(
    "ts",
    [
        "0.001",
        "5185313050341.260",  # H200, relative to a base
        "4458676416788.066",
        "4398046511104.999",  # 2**42: a float times 1000 rounds twice from here on
        "4503599627370.495",
        "8796093022207.999",  # the last time that a float holds to a nanosecond
        "8796093022208.001",
        "8999999999999.003",
        "1712195495502094.565",  # absolute, of an old file
        "1694128201435418",
    ],
)
def test_every_nanosecond_of_the_text_arrives(ts: str) -> None:
    expected = int(Decimal(ts) * 1000)
    assert start_and_end(ts) == (expected, expected + 1001)


def test_a_late_absolute_time_after_a_first_small_one_is_exact_too() -> None:
    raw = b"""{"traceEvents": [
        {"ph": "X", "cat": "overhead", "name": "a", "ts": 1.5, "dur": 1},
        {"ph": "X", "cat": "kernel", "name": "b", "ts": 1712195495502094.565, "dur": 0.001}]}"""
    timeline = timeline_of(decode(raw, HERE), HERE, rank=0)
    assert timeline.start_ns.tolist() == [1500, 1712195495502094565]


def test_only_spans_are_kept_and_the_span_of_the_whole_profile_is_not_one() -> None:
    raw = b"""{"traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 1.0, "args": {"name": "python"}},
        {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 1.0, "cat": "ac2g", "name": "ac2g"},
        {"ph": "X", "cat": "Trace", "ts": 0, "dur": 9, "pid": "Spans", "tid": "PyTorch Profiler", "name": "p"},
        {"ph": "X", "cat": "kernel", "ts": 1, "dur": 2, "pid": 0, "tid": 7, "name": "k"}]}"""
    assert [event.name for event in decode(raw, HERE).events] == ["k"]


def test_a_bare_list_of_torch_1_is_read() -> None:
    raw = b'[{"name": "add", "ph": "X", "ts": 1.0, "dur": 2.0, "tid": 1, "pid": "CPU functions", "args": {}}]'
    assert [event.pid for event in decode(raw, HERE).events] == ["CPU functions"]


def test_the_collector_is_on_again_afterwards() -> None:
    assert gc.isenabled()
    decode(b'{"traceEvents": []}', HERE)
    with pytest.raises(TraceError):
        decode(b"no", HERE)
    assert gc.isenabled()


@pytest.mark.parametrize("raw", [b"", b"  \n", b"{}", b"no json", b"null", b'{"traceEvents": 3}', b"\x80\x81"])
def test_what_is_no_trace_says_so(raw: bytes) -> None:
    with pytest.raises(TraceError, match=r"^trace\.json: .*expected .*\"traceEvents\""):
        decode(raw, HERE)


def test_a_wrong_type_names_the_event_the_field_and_both_types() -> None:
    raw = b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1}, {"ph": "X", "name": [], "ts": 1, "dur": 1}]}'
    with pytest.raises(TraceError) as caught:
        decode(raw, HERE)
    assert str(caught.value) == (
        "trace.json: traceEvents[1]: Expected `str`, got `array` - at `$.name`; "
        "expected an event of a Chrome trace. strict=False reads the others"
    )
    found = decode(raw, HERE, strict=False)
    assert [event.name for event in found.events] == ["a"]
    assert (found.mended.dropped, found.mended.first_dropped) == (
        1,
        "traceEvents[1]: Expected `str`, got `array` - at `$.name`",
    )


def test_deep_nesting_is_an_error_not_a_crash() -> None:
    with pytest.raises(TraceError):
        decode(b'{"traceEvents": ' + b"[" * 100_000, HERE)
