import gzip
import importlib.util
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit.timeline.measure import breakdown
from kit.timeline.read import read
from kit.timeline.record import COLUMNS, Timeline

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]
TEXTS = ("name", "collective", "dtype")


@pytest.fixture(scope="module")
def pair(data: Path) -> Timeline:
    return read([data / f"h200_ddp_eager_rank{rank}.json.gz" for rank in (0, 1)])


@pytest.mark.parametrize("name", ["h200_ddp_eager_rank1", "h200_static_cudagraph_rank0", "gloo_ddp_rank0"])
@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_one_rank_comes_back_exactly(data: Path, tmp_path: Path, name: str, ending: str) -> None:
    timeline = read(data / f"{name}.json.gz")
    again = read(timeline.to_perfetto(tmp_path / f"rank{timeline.ranks[0]}{ending}"))
    for column in COLUMNS:
        if column in TEXTS:
            texts = [[t.strings[i] if i >= 0 else None for i in getattr(t, column)] for t in (timeline, again)]
            assert texts[0] == texts[1]
        elif column != "lane":
            assert getattr(timeline, column).tolist() == getattr(again, column).tolist(), column
    assert breakdown(again) == breakdown(timeline)
    assert again.groups == timeline.groups


def test_all_ranks_are_lanes_with_names_and_exact_times(pair: Timeline, tmp_path: Path) -> None:
    written = json.loads(gzip.decompress(pair.to_perfetto(tmp_path / "pair.json.gz").read_bytes()), parse_float=str)
    events = written["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    assert sorted({name for name in processes.values() if "device" in name}) == ["rank 0 device 0", "rank 1 device 1"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(pair)
    base = written["baseTimeNanoseconds"]
    assert [base + int(str(e["ts"]).replace(".", "")) for e in spans] == pair.start_ns.tolist()
    assert [int(str(e["dur"]).replace(".", "")) for e in spans] == pair.duration_ns.tolist()
    assert all((event["pid"], event["tid"]) in threads for event in spans)


def test_spans_of_a_lane_never_cross(pair: Timeline, tmp_path: Path) -> None:
    """Perfetto drops spans that overlap without nesting; 26 kernels of rank 1 overlap the one before them."""
    events = json.loads(pair.to_perfetto(tmp_path / "pair.json").read_text())["traceEvents"]
    lanes: dict[Any, list[tuple[int, int]]] = {}
    seconds = {
        (e["pid"], e["tid"]) for e in events if e["name"] == "thread_name" and "overlapping" in e["args"]["name"]
    }
    for event in events:
        if event["ph"] == "X" and event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"):
            start = round(event["ts"] * 1000)
            lanes.setdefault((event["pid"], event["tid"]), []).append((start, start + round(event["dur"] * 1000)))
    for spans in lanes.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    assert sum(len(lanes[lane]) for lane in seconds) >= 26


def test_an_arrow_leads_from_each_launch_to_each_thing_launched(pair: Timeline, tmp_path: Path) -> None:
    events = json.loads(pair.to_perfetto(tmp_path / "pair.json").read_text())["traceEvents"]
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == int(np.isin(pair.category, (0, 1, 2)).sum())  # no orphans in this capture
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert all(names[event["pid"], event["tid"]].startswith("thread ") for event in starts.values())
    assert all(names[event["pid"], event["tid"]].startswith("stream ") for event in ends.values())


def test_text_of_strangers_is_escaped_and_an_empty_timeline_is_written_too(
    write: Write, span: Span, tmp_path: Path
) -> None:
    name = '"], \\ \n\u2028 "x": {'
    again = read(read(write([span("kernel", name, 1, 1)])).to_perfetto(tmp_path / "rank0.json"))
    assert again.strings == (name,)
    assert len(read(read(write([])).to_perfetto(tmp_path / "rank0.json"))) == 0


def test_nothing_half_written_stays(pair: Timeline, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        pair.to_perfetto(tmp_path / "gone" / "x.json")
    assert list(tmp_path.iterdir()) == []


def test_without_pandas_the_error_says_how_to_install_it(pair: Timeline) -> None:
    if importlib.util.find_spec("pandas") is not None:
        pytest.skip("pandas is installed")
    with pytest.raises(ImportError) as caught:
        pair.to_pandas()
    assert str(caught.value) == "to_pandas() needs pandas, which is not installed; install it with: pip install pandas"


def test_a_frame_holds_every_column(pair: Timeline) -> None:
    pytest.importorskip("pandas")
    frame = pair.to_pandas()
    assert len(frame) == len(pair)
    assert frame.start_ns.tolist() == pair.start_ns.tolist()
    assert frame.name.tolist() == [pair.strings[i] for i in pair.name]
    assert frame.tid.tolist() == [pair.lanes[i].tid for i in pair.lane]
    assert set(frame.columns) >= set(COLUMNS) - {"lane"}


def test_times_that_are_centuries_apart_are_written_so_that_they_are_read_again(tmp_path: Path) -> None:
    events = [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": at, "dur": 1} for at in (-4e15, 4e15)]
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": events}))
    timeline = read(tmp_path / "rank0.json")
    assert read(timeline.to_perfetto(tmp_path / "again_rank0.json")).start_ns.tolist() == timeline.start_ns.tolist()
