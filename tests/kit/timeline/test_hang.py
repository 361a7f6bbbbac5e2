import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from kit.timeline.collective_log import CollectiveLog, LogPart
from kit.timeline.hang import FindingKind, Hang, explain_hang
from kit.timeline.log_rows import Entry, RankLog, log_of
from kit.timeline.logs import read_log
from kit.timeline.record import Group

WORLD = Group(name="0", description="default_pg", ranks=(0, 1, 2))
MS = 1_000_000


def call(sequence: int, name: str = "all_reduce", *, sizes: str = "[4]", at_ms: int = 0, elements: int = 4,
         group: Group = WORLD, is_p2p: bool = False) -> Entry:  # fmt: skip
    return Entry(
        sequence=sequence, name=name, group=group, sizes_in=sizes, dtypes="Float", elements_in=elements,
        created_ns=at_ms * MS, is_p2p=is_p2p,
    )  # fmt: skip


def job(*ranks: Iterable[Entry]) -> CollectiveLog:
    return log_of(
        RankLog(part=LogPart(rank=rank, source=f"rank{rank}", kind="flight recorder"), entries=list(entries))
        for rank, entries in enumerate(ranks)
    )


def said(hang: Hang, kind: FindingKind) -> list[str]:
    return [finding.sentence for finding in hang.findings if finding.kind is kind]


def test_the_golden_cases_of_gloo_are_told_in_one_sentence_each(shared_data: Path) -> None:
    folder = shared_data / "debug_logs"
    missing = explain_hang(folder / "flight_recorder_gloo_missing")
    assert [str(finding) for finding in missing.findings] == [
        "Rank 1 never entered collective 5, all_reduce of [16] Float (fr.py:9); rank 0 waits there.",
        "The last collective on which ranks 0, 1 agree is collective 4, all_gather of [4] Float (fr.py:5).",
    ]
    assert (missing.findings[0].ranks, missing.findings[0].sequence) == ((1,), 5)
    mismatch = explain_hang(folder / "flight_recorder_gloo_mismatch")
    assert [str(finding) for finding in mismatch.findings] == [
        "At collective 5 the ranks differ in kind and size: rank 0 runs all_reduce of [16] Float (fr.py:12), "
        "rank 1 runs broadcast of [4] Float (fr.py:13).",
        "The last collective on which ranks 0, 1 agree is collective 4, all_gather of [4] Float (fr.py:5).",
    ]


@pytest.mark.parametrize(
    ("case", "first"),
    [
        ("shape", "At collective 0 the ranks differ in size: rank 0 runs all_reduce of [4] Float, "
                  "rank 1 runs all_reduce of [5] Float."),
        ("dtype", "At collective 0 the ranks differ in type: rank 0 runs all_reduce of [4] Float, "
                  "rank 1 runs all_reduce of [4] Double."),
        ("op", "At collective 0 the ranks differ in kind: rank 0 runs all_reduce of [4] Float, "
               "rank 1 runs broadcast of [4] Float."),
        ("missing", "Rank 1 never entered collective 1, all_reduce of [4] Float; rank 0 waits there."),
        ("monbar", "Rank 0 said: rank 1 did not come within 3000 ms."),
        ("ok", "The last collective on which ranks 0, 1 agree is collective 4, broadcast of [10] Float."),
    ],
)  # fmt: skip
def test_debug_logs_are_told_the_same_way(shared_data: Path, case: str, first: str) -> None:
    hang = explain_hang([shared_data / "debug_logs" / f"{case}-DETAIL-r{rank}.log" for rank in (0, 1)])
    assert str(hang.findings[0]) == first


def test_the_dump_of_one_nccl_rank_says_what_it_can(shared_data: Path) -> None:
    hang = explain_hang(read_log(shared_data / "h200" / "flight_recorder_rank0.pkl"))
    assert str(hang).splitlines() == [
        "Rank 1 left no log: it ended, hangs outside a collective, or its file is not among the 1 given.",
        "Rank 0 had 12 collectives enqueued and not completed when it was dumped: 8287 to 8298.",
        "Rank 0 entered nothing for 701 ms before collective 5517, all_reduce of [103022592] Float "
        "(1 more gaps over 100 ms).",
        "On rank 0 all_reduce jumps from 4,096 to 134,217,728 elements at collective 8286.",
    ]  # fmt: skip
    assert repr(hang) == "Hang(4 findings: silent rank, pending, gap, size jump)"


def test_all_who_are_missing_and_all_who_wait_are_named() -> None:
    hang = explain_hang(job([call(1), call(2)], [call(1)], [call(1), call(2)]))
    assert said(hang, FindingKind.MISSING) == [
        "Rank 1 never entered collective 2, all_reduce of [4] Float; rank 0, 2 wait there."
    ]


def test_numbers_that_are_missing_on_all_ranks_are_captured_collectives_and_no_fault() -> None:
    same = [call(1), call(1002)]
    hang = explain_hang(job(same, same, same))
    assert said(hang, FindingKind.MISSING) == []
    assert said(hang, FindingKind.LAST_MATCH)[0].startswith(
        "The last collective on which ranks 0, 1, 2 agree is collective 1002,"
    )


def test_what_fell_out_of_a_ring_buffer_is_no_fault() -> None:
    full = [call(number) for number in range(1, 9)]
    hang = explain_hang(job(full, full[4:], full[2:]))
    assert said(hang, FindingKind.MISSING) == []


def test_a_rank_that_entered_nothing_of_a_group_it_belongs_to_is_missing() -> None:
    pair = Group(name="7", description="tp", ranks=(0, 1))
    hang = explain_hang(job([call(1), call(1, "broadcast", group=pair)], [call(1)], [call(1)]))
    assert said(hang, FindingKind.MISSING) == [
        "Rank 1 never entered collective 1 of group tp, broadcast of [4] Float; rank 0 waits there."
    ]


def test_sizes_may_differ_where_the_collective_allows_it() -> None:
    hang = explain_hang(job([call(1, "all_to_all", sizes="[4]")], [call(1, "all_to_all", sizes="[9]")],
                            [call(1, "all_to_all", sizes="[2]")]))  # fmt: skip
    assert said(hang, FindingKind.MISMATCH) == []


def test_sends_and_receives_are_not_matched() -> None:
    hang = explain_hang(job([call(1), call(9, "send", is_p2p=True)], [call(1)], [call(1)]))
    assert said(hang, FindingKind.MISSING) == []


def test_gaps_of_a_tenth_of_a_second_and_jumps_in_size_are_told_once_a_rank() -> None:
    calm = [call(1, at_ms=0), call(2, at_ms=100)]
    late = [call(1, at_ms=0), call(2, at_ms=101), call(3, at_ms=900, elements=4 * 64)]
    hang = explain_hang(job(calm, late, calm))
    assert said(hang, FindingKind.GAP) == [
        "Rank 1 entered nothing for 799 ms before collective 3, all_reduce of [4] Float (1 more gaps over 100 ms)."
    ]
    assert said(hang, FindingKind.JUMP) == ["On rank 1 all_reduce jumps from 4 to 256 elements at collective 3."]


def test_a_hang_of_real_processes_is_explained_from_their_recorders(tmp_path: Path) -> None:
    """The recorder of the running torch, dumped while rank 1 is still missing from a collective."""
    ranks = [
        subprocess.Popen([sys.executable, "-W", "ignore", "-c", JOB, str(rank), str(tmp_path)], stderr=subprocess.PIPE)
        for rank in (0, 1)
    ]
    try:
        said_last = [rank.communicate(timeout=120)[1].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], said_last
    (tmp_path / "store").unlink(missing_ok=True)
    hang = explain_hang(tmp_path)
    assert [str(finding) for finding in hang.findings[:2]] == [
        "Rank 1 never entered collective 2, all_reduce of [16] Float (<string>:10); rank 0 waits there.",
        "The last collective on which ranks 0, 1 agree is collective 1, all_reduce of [8] Float (<string>:9).",
    ]


# Names of torch 2.11 to 2.13; kit.timeline reads dumps and calls none of them.
JOB = """
import os, pathlib, sys
os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
import torch
import torch.distributed as dist
import torch._C._distributed_c10d as private
rank, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
dist.all_reduce(torch.ones(8))
work = dist.all_reduce(torch.ones(16), async_op=True) if rank == 0 else None
(folder / f"rank{rank}.pkl").write_bytes(private._dump_fr_trace())
if work is None:  # comes after all, so that both end
    dist.all_reduce(torch.ones(16))
else:
    work.wait()
dist.destroy_process_group()
"""
