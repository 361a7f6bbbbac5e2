import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.timeline.error import NoTraceError, TraceError
from kit.timeline.flight_recorder import read_dump
from kit.timeline.logs import read_log
from kit.timeline.record import Group

HERE = Path("nccl_trace_rank_3")
ENTRY: dict[str, Any] = {
    "frames": [
        {"name": "all_reduce", "filename": "site-packages/torch/distributed/distributed_c10d.py", "line": 3245},
        {"name": "<module>", "filename": "/home/me/train.py", "line": 9},
    ],
    "record_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 5, "p2p_seq_id": 0,
    "op_id": 5, "profiling_name": "nccl:all_reduce", "time_created_ns": 17, "input_sizes": [[16, 2], [3]],
    "input_dtypes": ["Float", "Float"], "output_sizes": [[16, 2], [3]], "state": "completed",
    "time_discovered_started_ns": None, "time_discovered_completed_ns": 29, "retired": True, "is_p2p": False,
}  # fmt: skip


def dump(*entries: Any, **changed: Any) -> dict[str, Any]:
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[2, 3]"}},
        "pg_status": {"0": {"last_enqueued_collective": 8, "last_started_collective": -1,
                            "last_completed_collective": "7"}},
        "entries": list(entries),
        **changed,
    }  # fmt: skip


def test_an_entry_is_kept_in_the_words_of_python() -> None:
    log = read_dump(pickle.dumps(dump(ENTRY), 2), HERE)
    [entry] = log.entries
    assert (log.part.rank, log.part.version) == (3, "2.10")
    assert (log.part.status[0].last_enqueued, log.part.status[0].last_completed) == (8, 7)
    assert (entry.sequence, entry.name, entry.group) == (
        5,
        "all_reduce",
        Group(name="0", description="default_pg", ranks=(2, 3)),
    )
    assert (entry.sizes_in, entry.dtypes, entry.elements_in) == ("[16, 2] [3]", "Float", 35)
    assert (entry.created_ns, entry.completed_ns, entry.state, entry.frame) == (17, 29, "completed", "train.py:9")


def test_the_real_nccl_dump_has_its_golden_counts_in_both_forms(shared_data: Path) -> None:
    folder = shared_data / "h200"
    golden = json.loads((folder / "golden.json").read_text())["flight_recorder"]
    logs = [read_log(folder / f"flight_recorder_rank0.{end}") for end in ("pkl", "json.gz")]
    for log in logs:
        assert (len(log), log.ranks) == (golden["entries"], (0,))
        assert (int(log.sequence[0]), int(log.sequence[-1])) == (
            golden["first_collective_seq_id"], golden["last_collective_seq_id"],
        )  # fmt: skip
        gaps = [(int(a), int(b)) for a, b in zip(log.sequence, log.sequence[1:], strict=False) if b - a > 1]
        assert gaps == [tuple(golden["gap"])]
        waits = log.completed_ns - log.created_ns
        assert [int(waits.min()), int(waits.max())] == golden["create_to_completion_ns"]
        [status] = log.parts[0].status
        assert (status.last_enqueued, status.last_started, status.last_completed) == (8298, -1, 8286)
    assert logs[0].sequence.tolist() == logs[1].sequence.tolist()
    assert logs[0].created_ns.tolist() == logs[1].created_ns.tolist()


@pytest.mark.parametrize("form", ["pkl", "dump_json.json", "from_pickle.json"])
def test_gloo_dumps_take_the_members_of_the_group_without_a_name(shared_data: Path, form: str) -> None:
    log = read_log(shared_data / "debug_logs" / "flight_recorder_gloo_missing" / f"rank1.{form}")
    assert log.ranks == (1,)
    assert log.groups == (Group(name="0", description="default_pg", ranks=(0, 1)),)
    assert log.sequence.tolist() == [1, 2, 3, 4]
    assert log.completed_ns.tolist() == [-1, -1, -1, -1]
    assert log.text("frame", 0) == ("fr.py:4" if form != "dump_json.json" else "")


def test_an_entry_that_is_none_is_refused_with_its_place_or_left_out() -> None:
    raw = json.dumps(dump(ENTRY, {**ENTRY, "input_sizes": "many"}, 7)).encode()
    with pytest.raises(TraceError) as caught:
        read_dump(raw, HERE)
    assert str(caught.value) == (
        "nccl_trace_rank_3: entries[1]: Expected `array`, got `str` - at `$.input_sizes`; expected what a flight "
        "recorder writes. strict=False reads the other entries"
    )
    log = read_dump(raw, HERE, strict=False)
    assert (len(log.entries), log.part.dropped) == (1, 2)


def test_another_version_and_something_else_say_what_was_expected() -> None:
    with pytest.raises(TraceError, match=r"flight recorder version '1\.5', expected 2\.x"):
        read_dump(json.dumps(dump(version="1.5")).encode(), HERE)
    for other in (b"{}", b"[]", b"{", b'{"traceEvents": []}', b"\xff{"):
        with pytest.raises(NoTraceError, match=r"^nccl_trace_rank_3: .*expected a flight-recorder dump"):
            read_dump(other, HERE)


def test_a_rank_that_the_name_does_not_say_is_unknown() -> None:
    log = read_dump(json.dumps(dump(ENTRY)).encode(), Path("dump"))
    assert log.part.rank == -1
    assert log.notes == ["dump: rank unknown: the file does not say it and its name ends in no number"]
    assert read_dump(json.dumps(dump(ENTRY)).encode(), Path("trace_12.json")).part.rank == 12


ODD = st.none() | st.integers() | st.text(max_size=4) | st.lists(st.integers() | st.lists(st.integers()), max_size=3)


@settings(max_examples=120, deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(ENTRY)), ODD, max_size=3),
    st.dictionaries(st.sampled_from(["version", "pg_config", "pg_status", "entries"]), ODD, max_size=1),
)
def test_wrong_types_and_numbers_are_read_or_refused(entry: dict[str, Any], top: dict[str, Any]) -> None:
    raw = json.dumps(dump({**ENTRY, **entry}, **top)).encode()
    for strict in (True, False):
        try:
            read_dump(raw, HERE, strict=strict)
        except TraceError as error:
            assert str(error).startswith("nccl_trace_rank_3: ")
