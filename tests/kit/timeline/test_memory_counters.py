import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from kit.timeline.error import TraceError
from kit.timeline.memory_counters import (
    CATEGORIES,
    allocators,
    read_memory_timeline,
    with_memory,
)
from kit.timeline.merge import merge
from kit.timeline.read import read
from kit.timeline.record import MEMORY_COLUMNS


def test_a_device_of_a_public_trace(shared_data: Path) -> None:
    timeline = read(shared_data / "public/tracelens/h100_bert_small.json.gz", memory=True)
    [gpu] = [found.rows for found in allocators(timeline) if found.device == "device 0"]
    columns = (timeline.memory_allocated_bytes, timeline.memory_reserved_bytes, timeline.memory_changed_bytes)
    assert [column[gpu[0]] for column in columns] == [91505152, 121634816, 144384]
    assert (np.diff(timeline.memory_at_ns[gpu]) >= 0).all()


@pytest.mark.parametrize("at_us", ["4398046511104.011", "1719425580000123.457"])
def test_times_that_a_float_or_its_thousandfold_would_round_are_exact(write, span, at_us: str) -> None:
    event = {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": "AT", "args": {"Bytes": 8, "Total Allocated": 8}}
    path = write([span("cpu_op", "aten::mm", "AT", 1), event])
    path.write_text(path.read_text().replace('"AT"', at_us))
    timeline = with_memory(read(path), path)
    assert [*timeline.memory_at_ns, *timeline.start_ns] == [int(at_us.replace(".", ""))] * 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ts": None}, "memory event 1 has ts None; expected finite microseconds within 146 years"),
        ({"ts": 1e300}, "memory event 1 has ts 1E\\+300; expected"),
        ({"args": {"Bytes": 1 << 63}}, "Expected `int` <= 4611686018427387904 - at `\\$.Bytes`; expected a Kineto"),
        ({"args": {"Bytes": "many"}}, "Expected `int`, got `str` - at `\\$.Bytes`; expected a Kineto trace in JSON"),
    ],
)
def test_a_memory_event_that_cannot_be_is_refused(write, span, change: dict, said: str) -> None:
    event = {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 2, "args": {"Bytes": 8}}
    path = write([span("cpu_op", "aten::mm", 0, 10), event, event | change])
    with pytest.raises(TraceError, match=said):
        with_memory(read(path), path)
    assert read(path, memory=True, strict=False).memory_changed_bytes.tolist() == [8]


def test_sizes_by_category_are_those_that_hta_asserts(shared_data: Path) -> None:
    golden = json.loads((shared_data / "public/golden.json").read_text())["asserted_by_hta"][
        "hta/memory_timeline.raw.gz"
    ]
    found = read_memory_timeline(shared_data / "public/hta/memory_timeline.raw.gz")
    assert found.sizes_bytes.shape[1] == len(CATEGORIES) == golden["categories"]
    assert (found.sizes_bytes[744] == golden["sizes at index 744"]).all()
    assert found.peak_bytes > 2_600_000_000


def test_what_is_no_memory_timeline_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text('{"a": 1}')
    with pytest.raises(TraceError, match="expected a list of \\[time, action, bytes, category\\]"):
        read_memory_timeline(tmp_path / "x")
    (tmp_path / "y").write_text("[[0, 1, 5, 9]]")
    with pytest.raises(TraceError, match="categories 9 to 9, expected 0 to 7"):
        read_memory_timeline(tmp_path / "y")


def test_a_trace_with_a_name_that_is_no_json_keeps_its_memory(write, span) -> None:
    event = {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 2, "args": {"Bytes": 8, "Total Allocated": 8}}
    path = write([span("cpu_op", "NAME", 0, 10), event])
    path.write_text(path.read_text().replace("NAME", 'layer "attn"'))
    timeline = with_memory(read(path), path)
    assert timeline.parts[0].mended == 1
    assert (timeline.memory_allocated_bytes.tolist(), timeline.memory_lane.tolist()) == ([8], [timeline.lane[0]])


def test_a_trace_without_memory_is_refused_where_it_was_asked_for(write, span) -> None:
    path = write([span("cpu_op", "aten::mm", 0, 10)])
    with pytest.raises(TraceError, match="has no memory events; expected a trace made with profile_memory=True"):
        with_memory(read(path), path)


def test_what_a_profile_recorded_is_read_with_memory_and_exported_and_read_again(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorder:
        x = torch.ones(1000, 1000)
        y = x + 1
        del x, y
    recorder.export_chrome_trace(str(tmp_path / "rank0.json"))
    timeline = read(tmp_path / "rank0.json", memory=True)
    assert timeline.memory_allocated_bytes.max() - timeline.memory_allocated_bytes[0] >= 4_000_000
    again = read(timeline.to_perfetto(tmp_path / "again_rank0.json.gz"), memory=True)
    for column in set(MEMORY_COLUMNS) - {"memory_lane"}:  # lanes have other names
        assert getattr(again, column).tolist() == getattr(timeline, column).tolist(), column
    assert (again.memory_lane == again.lane[0]).all()
    assert [(one.rank, one.device) for one in allocators(merge([timeline]))] == [(0, "cpu")]
    assert allocators(read(tmp_path / "rank0.json")) == ()
