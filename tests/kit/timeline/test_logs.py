import json
import shutil
from pathlib import Path

import pytest

from kit.archive import load, save
from kit.timeline.collective_log import LOG_COLUMNS
from kit.timeline.error import TraceError
from kit.timeline.logs import read_log


def test_a_folder_keeps_one_of_the_forms_of_a_dump_and_names_the_others(shared_data: Path) -> None:
    log = read_log(shared_data / "debug_logs" / "flight_recorder_gloo_missing")
    assert log.ranks == (0, 1)
    assert len(log) == 9
    assert sorted(log.notes) == [
        f"left out: rank{rank}.{form} says the same as rank{rank}.from_pickle.json"
        for rank in (0, 1)
        for form in ("dump_json.json", "pkl")
    ]


def test_a_stranger_in_a_folder_is_named_and_left_out(shared_data: Path, tmp_path: Path) -> None:
    shutil.copy(shared_data / "debug_logs" / "flight_recorder_gloo_missing" / "rank0.pkl", tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    log = read_log(tmp_path)
    assert log.ranks == (0,)
    [note] = log.notes
    assert note.startswith(f"left out: {tmp_path / 'notes.txt'}: expected a flight-recorder dump")


def test_two_dumps_of_one_rank_that_differ_are_refused_or_left_out(shared_data: Path, tmp_path: Path) -> None:
    for kind in ("missing", "mismatch"):
        source = shared_data / "debug_logs" / f"flight_recorder_gloo_{kind}" / "rank0.pkl"
        shutil.copy(source, tmp_path / f"{kind}_rank0.pkl")
    with pytest.raises(
        TraceError, match=r"^rank 0 comes 2 times: .*mismatch_rank0\.pkl, .*missing_rank0\.pkl; expected"
    ):
        read_log(tmp_path)
    log = read_log(tmp_path, strict=False)
    assert log.ranks == (0,)
    assert any(note.startswith("left out: rank 0 comes 2 times") for note in log.notes)


def test_a_dump_and_a_log_of_one_rank_complete_each_other(shared_data: Path, tmp_path: Path) -> None:
    shutil.copy(shared_data / "debug_logs" / "flight_recorder_gloo_missing" / "rank0.pkl", tmp_path)
    shutil.copy(shared_data / "debug_logs" / "missing-DETAIL-r0.log", tmp_path)
    log = read_log(tmp_path)
    assert (log.ranks, len(log), len(log.messages)) == ((0,), 5, 1)
    assert log.parts[0].kind == "flight recorder"


def test_one_of_several_without_a_rank_is_refused_or_left_out(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "debug_logs" / "flight_recorder_gloo_missing"
    shutil.copy(source / "rank0.pkl", tmp_path)
    shutil.copy(source / "rank1.pkl", tmp_path / "other")
    with pytest.raises(TraceError, match=r"other: the rank is unknown, expected one rank a file"):
        read_log(tmp_path)
    assert read_log(tmp_path, strict=False).ranks == (0,)


def test_nothing_to_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="none of its 0 files is a flight-recorder dump"):
        read_log(tmp_path)
    with pytest.raises(TraceError, match=r"gone: no such file or folder; expected a flight-recorder dump"):
        read_log(tmp_path / "gone")
    (tmp_path / "empty.pkl").write_bytes(b"")
    with pytest.raises(TraceError, match=r"empty\.pkl: is empty; expected a flight-recorder dump"):
        read_log(tmp_path / "empty.pkl")


def test_a_log_is_the_same_after_saving_and_loading(shared_data: Path, tmp_path: Path) -> None:
    log = read_log([shared_data / "debug_logs" / f"op-DETAIL-r{rank}.log" for rank in (0, 1)])
    again = load(save(log, tmp_path / "log.kit"))
    assert all(getattr(log, column).tolist() == getattr(again, column).tolist() for column in LOG_COLUMNS)
    assert (log.parts, log.strings, log.groups, log.messages) == (
        again.parts,
        again.strings,
        again.groups,
        again.messages,
    )
    assert repr(again) == "CollectiveLog(rank 0, 1: 2 collectives of 1 groups, 2 messages)"
    with pytest.raises(TraceError):
        (tmp_path / "rank0.json").write_text(json.dumps({"entries": []}))
        read_log(tmp_path / "rank0.json")
