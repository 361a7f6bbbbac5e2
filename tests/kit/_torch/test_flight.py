"""The flight recorder is asked until a CUDA graph is captured, and never again."""

import pickle

import pytest

from kit._torch import flight

ENTRY = {
    "time_created_ns": 1_000_000_000, "profiling_name": "nccl:all_reduce", "process_group": ("0", "default_pg"),
    "collective_seq_id": 3, "input_dtypes": ["Float"], "input_sizes": [[4]], "state": "completed",
}  # fmt: skip


def test_a_silenced_recorder_is_asked_nothing(monkeypatch):
    asked = []

    def dump(**options):
        asked.append(options["includeStackTraces"])
        return pickle.dumps({"entries": [ENTRY]})

    monkeypatch.setattr(flight, "_silent", False)
    monkeypatch.setattr(flight, "_DUMPS", ("_dump_nccl_trace",))
    monkeypatch.setattr(flight.c10d, "_dump_nccl_trace", dump, raising=False)
    (entry,) = flight.recorded(since_ns=0)
    assert (entry.kind, entry.number, entry.tensors, entry.ended) == ("all_reduce", 3, "float32[4]", True)
    flight.silence()
    assert flight.recorded(since_ns=0) == []
    with pytest.raises(
        RuntimeError, match="a CUDA graph was captured here, and torch's flight recorder cannot be asked"
    ):
        flight.dumped(since_ns=0, until_ns=1)
    assert asked == [False]
