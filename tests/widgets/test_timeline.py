"""The kernel's side of the timeline view: which boxes are sent, what a range and a selection answer."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import traitlets

import kit
from kit.step.record import Block, Estimate, Plan, Span
from kit.timeline.match import match
from kit.timeline.measure import breakdown, breakdown_within
from kit.timeline.record import Category, Timeline
from kit.timeline.steps import steps
from widgets.timeline import TimelineView
from widgets.timeline_lanes import LOOKS, Kind, Lanes, lanes_of

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def h200() -> Timeline:
    return kit.read([DATA / f"h200_ddp_eager_rank{rank}.json.gz" for rank in (0, 1)], cache=False)


@pytest.fixture(scope="module")
def lanes(h200: Timeline) -> Lanes:
    return lanes_of(h200)


@pytest.fixture(scope="module")
def view(h200: Timeline) -> TimelineView:
    return TimelineView(h200)


def rows_of(lanes: Lanes, role: str, rank: int) -> list[slice]:
    return [slice(t.first, t.first + t.count) for t in lanes.tracks if (t.role, t.rank) == (role, rank)]


def test_every_event_is_sent_once_except_the_echoes_of_host_ranges(h200: Timeline, lanes: Lanes) -> None:
    sent = np.sort(lanes.row[lanes.row >= 0])
    assert lanes.unseen == 0
    assert sent.tolist() == np.flatnonzero(h200.category != Category.GPU_ANNOTATION).tolist()


def test_boxes_carry_the_times_and_names_of_their_rows(h200: Timeline, lanes: Lanes) -> None:
    boxes = np.flatnonzero(lanes.row >= 0)
    rows = lanes.row[boxes]
    assert (lanes.start[boxes] == h200.start_ns[rows] - lanes.zero_ns).all()
    assert np.allclose(lanes.duration[boxes], h200.duration_ns[rows], rtol=1e-6)
    assert all(
        lanes.names[lanes.name[b]] == h200.strings[h200.name[r]] for b, r in zip(boxes[::97], rows[::97], strict=True)
    )


def test_boxes_of_a_row_are_sorted_and_do_not_overlap(lanes: Lanes) -> None:
    for track in lanes.tracks:
        start = lanes.start[track.first : track.first + track.count]
        end = start + lanes.duration[track.first : track.first + track.count].astype(np.float64)
        slack = 1000 if track.role == "stream" else 64  # files round streams; float32 keeps 24 bits of a duration
        assert (np.diff(start) >= 0).all()
        assert (start[1:] + slack >= np.maximum.accumulate(end)[:-1]).all(), track


@pytest.mark.parametrize("rank", [0, 1])
def test_the_summary_row_adds_up_to_the_breakdown(h200: Timeline, lanes: Lanes, rank: int) -> None:
    (row,) = rows_of(lanes, "summary", rank)
    took = {kind: round(float(lanes.duration[row][lanes.kind[row] == kind].sum(dtype=np.float64))) for kind in Kind}
    truth = breakdown(h200)[rank]
    wanted = {
        Kind.COMPUTE: truth.compute_ns,
        Kind.EXPOSED: truth.exposed_communication_ns,
        Kind.COPY: truth.exposed_copy_ns,
        Kind.IDLE: truth.idle_ns,
    }
    for kind, ns in wanted.items():
        assert took[kind] == pytest.approx(ns, abs=200)


def test_collectives_are_joined_with_their_own_other_half(h200: Timeline, lanes: Lanes) -> None:
    pairs = {tuple(pair) for pair in lanes.row[lanes.joined].tolist()}
    assert pairs == {collective.rows for collective in match(h200).collectives}
    assert len(pairs) == 28


def test_a_plan_stands_beside_each_step(h200: Timeline) -> None:
    guess = Estimate(
        hardware="h200", seconds=0.05, compute_seconds=0.04, communication_seconds=0.02, exposed_seconds=0.01,
        peak_bytes=0, spans=(Span(name="all_reduce", start=0.02, end=0.04, exposed=0.01),),
        compute=(Block(phase="forward", start=0.0, end=0.01), Block(phase="waiting", start=0.03, end=0.04)),
    )  # fmt: skip
    plan = Plan(
        strategy="ddp", world_size=2, passes=(), micro_batch_rows=(1,), sends=(), node_count=1, parameter_bytes=0,
        state_bytes=0, unused=(), estimate=guess,
    )  # fmt: skip
    lanes = lanes_of(h200, plan=plan)
    compute, communication = (slice(t.first, t.first + t.count) for t in lanes.tracks[:2])
    begins = [step.start_ns - lanes.zero_ns for step in steps(h200, 0)]
    assert lanes.start[compute].tolist() == [at for begin in begins for at in (begin, begin + 30_000_000)]
    assert lanes.kind[compute].tolist() == [Kind.FORWARD, Kind.IDLE] * len(begins)
    assert lanes.kind[communication].tolist() == [Kind.EXPOSED] * len(begins)
    assert TimelineView(h200, plan=plan)._repr_mimebundle_()[0]["text/html"].count("</svg>") == 2
    with pytest.raises(ValueError, match="no times to draw"):
        TimelineView(h200, plan=replace(plan, estimate=None))


def test_memory_stands_on_the_clock_of_its_rank(h200: Timeline) -> None:
    at = np.array([0, 5_000], np.int64) + int(h200.start_ns.min())
    columns = {
        "rank": np.ones(2, int), "device": np.ones(2, int), "lane": np.full(2, -1), "at_ns": at,
        "changed_bytes": np.array([512, 512]), "allocated_bytes": np.array([512, 1024]),
        "reserved_bytes": np.array([2048, 2048]),
    }  # fmt: skip
    lanes = lanes_of(replace(h200, **{f"memory_{name}": values for name, values in columns.items()}))
    (track,) = [t for t in lanes.tracks if t.role == "memory"]
    assert (track.rank, track.label, track.count) == (1, "memory, device 1", 2)
    assert lanes.memory_at.tolist() == (at - lanes.zero_ns).tolist()
    assert lanes.memory_bytes.tolist() == [512, 1024]


def test_threads_are_the_device_of_a_cpu_rank() -> None:
    timeline = kit.read([DATA / f"gloo_ddp_rank{rank}.json.gz" for rank in (0, 1)], cache=False)
    lanes = lanes_of(timeline)
    assert TimelineView(timeline).hosts
    work = [n for n, name in enumerate(lanes.names) if name.startswith("gloo:")]
    assert set(lanes.kind[np.isin(lanes.name, work)].tolist()) <= {Kind.EXPOSED, Kind.HIDDEN}
    assert len(lanes.joined) == len(match(timeline).collectives) > 0


def test_no_kind_is_told_by_colour_alone() -> None:
    device = [LOOKS[kind] for kind in (Kind.COMPUTE, Kind.EXPOSED, Kind.HIDDEN, Kind.COPY, Kind.IDLE)]
    assert len({pattern for _, _, pattern in device}) == len(device)
    assert len(LOOKS) == len(Kind)


def test_the_table_is_that_of_the_range(view: TimelineView, h200: Timeline) -> None:
    assert view.table[0] == "The whole timeline"
    view.window = [20.0, 60.0]
    zero = min(int(h200.start_ns[i]) for i in range(len(h200)) if h200.category[i] in (0, 1, 2))
    truth = breakdown_within(h200, zero + 20_000_000, zero + 60_000_000)
    assert view.table[0] == "20.000 to 60.000 ms"
    assert [row[1] for row in view.table[2]] == [f"{row.window_ns / 1e6:.3f}" for row in truth]
    assert [row[5].split()[0] for row in view.table[2]] == [f"{row.idle_ns / 1e6:.3f}" for row in truth]
    for row in truth:
        parts = row.compute_ns + row.exposed_communication_ns + row.exposed_copy_ns + row.idle_ns
        assert parts == row.window_ns <= 40_000_000
    view.window = []
    assert view.table[0] == "The whole timeline"
    with pytest.raises(traitlets.TraitError, match="expected \\(from, to\\) in milliseconds"):
        view.window = [3.0, 1.0]


def test_pieces_of_a_timeline_add_up_to_the_whole(h200: Timeline) -> None:
    edges = np.linspace(h200.start_ns.min(), (h200.start_ns + h200.duration_ns).max() + 1, 7).astype(np.int64).tolist()
    parts = [breakdown_within(h200, one, other) for one, other in itertools.pairwise(edges)]
    for rank, whole in enumerate(breakdown(h200)):
        assert sum(part[rank].compute_ns for part in parts) == whole.compute_ns
        assert sum(part[rank].idle_ns for part in parts) == whole.idle_ns
        assert sum(part[rank].window_ns for part in parts) == whole.window_ns
    with pytest.raises(ValueError, match="has no length"):
        breakdown_within(h200, 5, 5)


def test_a_selected_collective_says_who_waited(view: TimelineView, h200: Timeline) -> None:
    collective = max(match(h200).collectives, key=lambda c: max(c.waiting_ns))
    waiting = collective.waiting_ns.index(max(collective.waiting_ns))
    view.selected = collective.rows[waiting]
    said = dict(map(tuple, view.details))
    assert view.details[0][0] == str(view.selected)
    assert said["name"] == h200.strings[h200.name[view.selected]]
    assert said["duration"] == f"{h200.duration_ns[view.selected] / 1e3:.3f} µs"
    waited = f"{max(collective.waiting_ns) / 1e3:.3f} µs for rank {collective.last_rank}"
    assert said["waiting"].startswith(waited)
    assert said["launched by"].startswith(("cuda", "cu"))
    view.selected = collective.rows[1 - waiting]
    assert dict(map(tuple, view.details))["waiting"].startswith("this rank came last")
    view.selected = -1
    assert view.details == []
    with pytest.raises(traitlets.TraitError, match="expected a row of the timeline"):
        view.selected = len(h200)


def test_other_views_can_share_the_selection(view: TimelineView) -> None:
    class Other(traitlets.HasTraits):
        selected = traitlets.Int(-1)

    other = Other()
    link = traitlets.link((view, "selected"), (other, "selected"))
    other.selected = 7
    assert view.details[0][0] == "7"
    view.selected = -1
    assert other.selected == -1
    link.unlink()


def test_pages_without_a_kernel_get_the_static_lanes_and_the_table(view: TimelineView) -> None:
    shown, _ = view._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in shown
    assert "<svg" in shown["text/html"] and "<table" in shown["text/html"]
    assert shown["text/plain"] == repr(view)


def test_the_columns_travel_as_bytes_and_the_face_names_no_other_machine(view: TimelineView) -> None:
    assert len(view.start) == 8 * len(view.kind)
    assert len(json.dumps([view.tracks, view.looks, view.bounds])) < 10_000
    assert "http" not in str(view._esm)
    assert "http" not in str(view._css)
    assert str(view._esm).count("export ") == 1


def test_a_hostile_name_is_text(tmp_path: Path) -> None:
    bad = "<img src=x onerror=alert(1)>"
    events = [{"ph": "X", "cat": "kernel", "name": bad, "pid": 0, "tid": 7, "ts": 1, "dur": 5, "args": {"stream": 7}}]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": 0, "world_size": 1}}))
    view = TimelineView(kit.read(path, cache=False))
    assert bad in view.names
    assert "innerHTML" not in str(view._esm)
    assert "<img" not in view._repr_mimebundle_()[0]["text/html"]


def test_other_records_are_refused() -> None:
    with pytest.raises(TypeError, match="TimelineView got a dict, expected a Timeline"):
        TimelineView({})  # type: ignore[arg-type]


def test_memory_that_the_timeline_holds_is_drawn_unasked(tmp_path: Path) -> None:
    with torch.profiler.profile(profile_memory=True) as recorder:
        kept = torch.zeros(1000)
    recorder.export_chrome_trace(str(tmp_path / "rank0.json"))
    timeline = kit.read(tmp_path / "rank0.json", memory=True)
    roles = [track["role"] for track in TimelineView(timeline).tracks]
    assert roles.count("memory") == 1
    assert kept.numel() == 1000


def test_python_frames_stand_below_what_the_thread_did_and_those_around_everything_are_left_out(tmp_path: Path) -> None:
    def span(cat: str, name: str, start: int, took: int, tid: int) -> dict[str, object]:
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": took, "args": {}}

    frames = [span("python_function", f"a.py({depth}): f", 0, 100, tid) for depth in range(20) for tid in (1, 2)]
    inner = span("python_function", "b.py(1): forward", 10, 60, 1)
    events = [*frames, inner, span("cpu_op", "aten::mm", 20, 30, 1), span("user_annotation", "mine", 5, 90, 1)]
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": events}))
    lanes = lanes_of(kit.read(tmp_path / "rank0.json"))
    host = [(t.label, lanes.names[lanes.name[t.first]], t.count) for t in lanes.tracks if t.role == "host"]
    assert host == [("thread 1", "mine", 1), ("", "aten::mm", 1), ("thread 1: Python", "b.py(1): forward", 1)]
    assert lanes.unseen == 0
