from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.timeline.debug_log import read_debug_log
from kit.timeline.error import NoTraceError
from kit.timeline.logs import read_log

HERE = Path("job-r0.log")
LINE = (
    "[rank{rank}]:[I1130 12:50:34.671866977 ProcessGroupWrapper.cpp:710] [Rank {rank}] Running collective: "
    "CollectiveFingerPrint(SequenceNumber={number}, OpType=ALLREDUCE, TensorShape=[4, 3], TensorDtypes=Float, "
    "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu))\n"
)


def test_lines_of_a_real_run_become_collectives(shared_data: Path) -> None:
    log = read_log([shared_data / "debug_logs" / f"ok-DETAIL-r{rank}.log" for rank in (0, 1)])
    assert log.ranks == (0, 1)
    for rank in log.ranks:
        rows = [row for row in range(len(log)) if log.rank[row] == rank]
        assert [(int(log.sequence[row]), log.text("name", row), log.text("sizes_in", row), log.text("dtypes", row))
                for row in rows] == [
            (0, "all_reduce", "[4]", "Float"),
            (1, "barrier", "", ""),  # without tensors the fields run together
            (2, "all_gather", "[1]", "Long"),
            (3, "broadcast", "[6]", "Long"),
            (4, "broadcast", "[10]", "Float"),
        ]  # fmt: skip
    # [I1130 12:50:34.671866977: day 335 of a leap year
    day_ns = 86_400 * 10**9
    assert log.created_ns[5] == 334 * day_ns + ((12 * 60 + 50) * 60 + 34) * 10**9 + 671_866_977


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("shape", "they differ in tensor shapes: 4 vs 5"),
        ("dtype", "they differ in tensor dtypes: Float vs Double"),
        ("op", "they differ in Op type: ALLREDUCE vs BROADCAST"),
    ],
)
def test_a_mismatch_is_told_with_both_ranks(shared_data: Path, case: str, says: str) -> None:
    [message] = read_log(shared_data / "debug_logs" / f"{case}-DETAIL-r0.log").messages
    assert (message.rank, message.kind, message.ranks, message.sequence) == (0, "mismatch", (0, 1), 0)
    assert message.text.endswith(says)


def test_a_barrier_that_was_missed_names_the_rank(shared_data: Path) -> None:
    for case, milliseconds in (("missing", 6000), ("monbar", 3000)):
        [message] = read_log(shared_data / "debug_logs" / f"{case}-DETAIL-r0.log").messages
        assert (message.kind, message.ranks) == ("missing", (1,))
        assert message.text == f"rank 1 did not come within {milliseconds} ms"


def test_without_the_debug_level_there_is_a_message_and_a_note(shared_data: Path) -> None:
    timeout = read_log(shared_data / "debug_logs" / "missing-OFF-r0.log")
    lost = read_log(shared_data / "debug_logs" / "shape-OFF-r1.log")
    assert [(m.rank, m.kind) for m in (*timeout.messages, *lost.messages)] == [(0, "timeout"), (1, "lost")]
    assert any("run with TORCH_DISTRIBUTED_DEBUG=DETAIL" in note for note in timeout.notes)


def test_a_file_with_the_lines_of_several_ranks_is_taken_apart() -> None:
    text = "".join(LINE.format(rank=rank, number=number) for number in range(3) for rank in (1, 0))
    logs = read_debug_log(("epoch 1\n" + text).encode(), HERE)
    assert [(log.part.rank, [entry.sequence for entry in log.entries]) for log in logs] == [
        (0, [0, 1, 2]), (1, [0, 1, 2]),
    ]  # fmt: skip
    assert logs[0].entries[0].elements_in == 12


def test_the_watchdog_of_nccl_names_the_collective() -> None:
    text = (
        "[rank3]:[E1130 10:00:00.000000000 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=16, NumelOut=16, Timeout(ms)=600000) ran for 600077 "
        "milliseconds before timing out.\n"
    )
    [log] = read_debug_log(text.encode(), HERE)
    [message] = log.messages
    assert (message.rank, message.kind, message.sequence) == (3, "timeout", 42)
    assert message.text == "all_reduce number 42 ran for 600077 ms before the watchdog gave up"


def test_text_of_something_else_says_what_was_expected() -> None:
    with pytest.raises(NoTraceError, match=r"job-r0\.log: has no line of c10d; expected a log with TORCH_DISTRIBUTED"):
        read_debug_log(b"hello\n", HERE)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_lines_never_stop_the_reading(draw: st.DataObject) -> None:
    raw = bytearray((LINE.format(rank=0, number=7) * 3).encode())
    for _ in range(draw.draw(st.integers(1, 20))):
        raw[draw.draw(st.integers(0, len(raw) - 1))] = draw.draw(st.integers(0, 255))
    try:
        assert sum(len(log.entries) for log in read_debug_log(bytes(raw), HERE)) <= 4
    except NoTraceError as error:
        assert str(error).startswith("job-r0.log: ")
