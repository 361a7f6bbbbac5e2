import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit import progress
from kit.archive import save
from kit.timeline.error import TraceError
from kit.timeline.measure import breakdown
from kit.timeline.read import read
from kit.timeline.record import Category

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


def test_a_folder_of_mixed_files_sorts_itself_by_rank_and_names_strangers(write: Write, span: Span) -> None:
    for rank, name in ((1, "a.json"), (0, "b.json")):
        path = write([span("kernel", "k", rank + 1, 1)], rank=rank, world_size=2, name=name)
    (path.parent / "golden.json").write_text('{"note": "no trace"}')
    (path.parent / "README.md").write_text("nothing")
    timeline = read(path.parent)
    assert timeline.ranks == (0, 1)
    assert [Path(source).name for source in timeline.sources] == ["b.json", "a.json"]
    [stranger] = [note for note in timeline.notes if note.startswith("left out")]
    assert "golden.json" in stranger


def test_a_broken_trace_in_a_folder_is_an_error_and_no_stranger(write: Write, span: Span) -> None:
    path = write([span("kernel", "k", 1, 1)] * 9, name="a.json")
    path.write_text(path.read_text()[:300])
    with pytest.raises(TraceError, match="breaks off"):
        read(path.parent)


def test_what_fits_no_rank_of_a_folder_is_named_and_left_out_when_asked(write: Write, span: Span) -> None:
    for rank, name in ((0, "a.json"), (0, "b.json"), (None, "c.json"), (1, "d.json")):
        path = write([span("kernel", "k", 1, 1)], rank=rank, name=name)
    with pytest.raises(TraceError, match="rank is unknown"):
        read(path.parent)
    timeline = read(path.parent, strict=False)
    assert [Path(source).name for source in timeline.sources] == ["a.json", "d.json"]
    left = [note.removeprefix("left out: ") for note in timeline.notes if note.startswith("left out")]
    assert left == [
        f"{path.parent / 'b.json'}: rank 0 was already read from {path.parent / 'a.json'}",
        f"{path.parent / 'c.json'}: its rank is unknown; name it rankN",
    ]


def test_dumps_and_logs_beside_traces_are_named_with_the_call_that_reads_them(
    write: Write, span: Span, shared_data: Path
) -> None:
    folder = write([span("kernel", "k", 1, 1)]).parent
    dumps = shared_data / "debug_logs" / "flight_recorder_gloo_missing"
    for name in ("rank0.pkl", "rank0.dump_json.json", "rank0.from_pickle.json"):
        (folder / name).write_bytes((dumps / name).read_bytes())
    notes = [note for note in read(folder).notes if note.startswith("left out")]
    assert len(notes) == 3
    assert all("kit.read_log reads" in note for note in notes)
    with pytest.raises(TraceError, match=r"rank0\.pkl: is a flight-recorder dump or another pickle, no trace"):
        read(folder / "rank0.pkl")


def test_an_export_of_nsight_and_a_trace_share_a_folder(write: Write, span: Span, shared_data: Path) -> None:
    folder = write([span("kernel", "k", 1, 1)], rank=0).parent
    export = shared_data / "public" / "nsys" / "rtx3060_2025_5.sqlite.gz"
    (folder / "rank1.sqlite.gz").write_bytes(export.read_bytes())
    assert read(folder).ranks == (0, 1)


def test_a_folder_without_a_trace_and_a_path_that_is_not_there_say_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="none of its 0 files is a trace"):
        read(tmp_path)
    with pytest.raises(TraceError, match=r"gone\.json: no such file or folder"):
        read(tmp_path / "gone.json")
    with pytest.raises(TraceError, match=r"aaa: cannot be opened .* expected a trace in JSON"):
        read("a" * 5000)
    for what in (None, 5, b"rank0.json", [None]):
        with pytest.raises(TypeError, match=r"got .*, expected a path, several, or a folder"):
            read(what)  # type: ignore[arg-type]


def test_a_saved_record_is_named_with_the_call_that_reads_it(tmp_path: Path, write: Write, span: Span) -> None:
    saved = save(read(write([span("cpu_op", "a", 0, 1)])), tmp_path / "t.kit")
    with pytest.raises(TraceError, match=r"t\.kit: is a zip archive, no trace; kit\.load reads what kit\.save wrote"):
        read(saved)


def test_two_files_of_one_rank_are_refused_with_both_names(data: Path) -> None:
    paths = [data / f"h200_{kind}_rank0.json.gz" for kind in ("ddp_eager", "static_bucketed")]
    with pytest.raises(TraceError) as caught:
        read(paths)
    assert str(caught.value) == (
        f"rank 0 comes 2 times: {paths[0]}, {paths[1]}; expected one file a rank. Read the files of one run only"
    )


def test_a_file_without_a_rank_is_rank_unknown_and_not_zero(shared_data: Path) -> None:
    for name, rank in (("no_rank", -1), ("no_distributed_info", -1), ("no_gpu", 0), ("cpu_only_rank34", 34)):
        timeline = read(shared_data / "public" / "hta" / "malformed" / f"{name}.json.gz")
        assert timeline.ranks == (rank,)
        assert timeline.cpu_only
        assert any(note.startswith("CPU-only") for note in timeline.notes)
        assert any("rank unknown" in note for note in timeline.notes) == (rank == -1)


def test_the_first_event_of_a_triton_trace_is_where_hta_asserts_it(shared_data: Path) -> None:
    folder = shared_data / "public"
    golden = json.loads((folder / "golden.json").read_text())["asserted_by_hta"]["hta/triton_example.json.gz"]
    timeline = read(folder / "hta" / "triton_example.json.gz")
    base = timeline.parts[0].base_ns
    assert base == golden["base time ns"]
    assert int(timeline.start_ns[0]) - base == golden["first event ts ns"]
    triton = [timeline.strings[i] for i in timeline.name[timeline.category == Category.CPU_OP]]
    assert sum(name == golden["name"] for name in triton) == golden["triton cpu ops"]


def test_the_longest_nccl_kernel_has_the_arguments_that_hta_asserts(shared_data: Path) -> None:
    folder = shared_data / "public"
    golden = json.loads((folder / "golden.json").read_text())["asserted_by_hta"]["hta/nccl_data.json.gz"]
    timeline = read(folder / "hta" / "nccl_data.json.gz")
    named = [i for i in range(len(timeline)) if timeline.strings[timeline.name[i]].startswith("ncclKernel")]
    assert len(named) == golden["kernels named ncclKernel"]
    row = max(named, key=lambda i: int(timeline.duration_ns[i]))
    group = timeline.groups[timeline.group[row]]
    expected = golden["longest nccl kernel"]
    assert timeline.strings[timeline.collective[row]] == expected["collective_name"]
    assert timeline.elements_in[row] == expected["in_msg_nelems"]
    assert timeline.elements_out[row] == expected["out_msg_nelems"]
    assert (group.name, group.description) == (expected["process_group_name"], expected["process_group_desc"])
    assert str(list(group.ranks)) == expected["process_group_ranks"]


def test_progress_is_told_file_by_file(data: Path) -> None:
    events: list[progress.Event] = []
    stop = progress.subscribe(events.append)
    try:
        read([data / f"gloo_ddp_rank{rank}.json.gz" for rank in (0, 1)])
    finally:
        stop()
    assert [(event.done, event.total) for event in events] == [(0, 2), (1, 2), (2, 2), (2, 2)]
    assert events[-1].state is progress.State.FINISHED


# --- Only TraceError may come out, whatever goes in. ---

SCALAR = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from([2**63, -(2**64), 10**400, 1e308, math.nan, math.inf, "0x7", "NaN", "1e999999999", "kernel", "X"]),
)  # fmt: skip
ANYTHING = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
ARGS = st.dictionaries(
    st.sampled_from(["stream", "device", "correlation", "bytes", "External id", "Process Group Name",
                     "Process Group Ranks", "In msg nelems", "Collective name", "dtype"]),
    ANYTHING,
)  # fmt: skip
KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur")
GOOD = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2.25}
EVENT = st.builds(
    lambda changed, args: {**GOOD, **changed, "args": args},
    st.dictionaries(st.sampled_from(KEYS), ANYTHING, max_size=2),
    ARGS | ANYTHING,
)
FILE = st.fixed_dictionaries(
    {"traceEvents": st.lists(EVENT | ANYTHING, max_size=4)},
    optional={
        "distributedInfo": ANYTHING | st.fixed_dictionaries({"rank": ANYTHING, "world_size": ANYTHING}),
        "baseTimeNanoseconds": ANYTHING,
    },
)
QUIET = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def read_or_refuse(path: Path) -> None:
    """Read strictly and not; either works or raises `TraceError`, and what is read can be measured."""
    for strict in (True, False):
        try:
            timeline = read(path, strict=strict)
        except TraceError as error:
            assert str(error).startswith(str(path))
        else:
            for row in breakdown(timeline):
                assert (
                    row.compute_ns + row.exposed_communication_ns + row.exposed_copy_ns + row.idle_ns == row.window_ns
                )


@QUIET
@given(FILE)
def test_wrong_types_and_numbers_are_read_or_refused(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(content))
    read_or_refuse(path)


@QUIET
@given(FILE, st.data())
def test_any_edit_of_the_text_is_read_or_refused(tmp_path: Path, content: Any, draw: st.DataObject) -> None:
    text = json.dumps(content).encode()
    start = draw.draw(st.integers(0, len(text)))
    end = draw.draw(st.integers(start, min(len(text), start + 20)))
    new = draw.draw(
        st.sampled_from([b"", b'"', b'"a"', b"\x00", b"\n", b"\xff", b"}", b"[", b"{", b"\\", b"1e999999", b"-inf"])
    )
    path = tmp_path / "rank0.json"
    path.write_bytes(text[:start] + new + text[end:])
    read_or_refuse(path)


@QUIET
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_read_or_refused(tmp_path: Path, raw: bytes, packed: bool) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(b"\x1f\x8b" * packed + raw)
    read_or_refuse(path)


def test_a_broken_file_of_thousands_of_events_ends_soon(tmp_path: Path) -> None:
    """Every event is broken, and nothing may take quadratic time."""
    import time

    path = tmp_path / "rank0.json"
    event = '{"ph": "X", "cat": "cpu_op", "name": "a "b" %d", "ts": %d, "dur": 1}'
    path.write_text('{"traceEvents": [' + ",\n".join(event % (i, i) for i in range(20_000)) + "]}")
    begun = time.process_time()
    assert read(path).parts[0].mended == 20_000
    assert time.process_time() - begun < 10
