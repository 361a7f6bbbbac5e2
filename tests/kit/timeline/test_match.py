import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.timeline.match import Matching, match
from kit.timeline.read import read

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]

# Report C15: two tensor-parallel and two data-parallel groups of four ranks; ids differ between ranks.
GROUPS = {"1": ("tp", [0, 1]), "2": ("tp", [2, 3]), "3": ("dp", [0, 2]), "4": ("dp", [1, 3])}
CALLS = [("tp", "allreduce"), ("tp", "allreduce"), ("tp", "_allgather_base"), ("dp", "_reduce_scatter_base")]
START_US = {
    0: [1000, 2000, 3000, 4000],
    1: [1010, 2000, 3040, 4100],
    2: [1000, 2400, 3500, 4500],
    3: [1005, 2005, 3505, 4500],
}
TRANSFER_US = 100
WAITING_US = {
    ("1", "allreduce", 0): {0: 10, 1: 0},
    ("1", "allreduce", 1): {0: 0, 1: 0},
    ("1", "_allgather_base", 0): {0: 40, 1: 0},
    ("2", "allreduce", 0): {2: 5, 3: 0},
    ("2", "allreduce", 1): {2: 0, 3: 395},
    ("2", "_allgather_base", 0): {2: 5, 3: 0},
    ("3", "_reduce_scatter_base", 0): {0: 500, 2: 0},
    ("4", "_reduce_scatter_base", 0): {1: 400, 3: 0},
}


@pytest.fixture
def four_ranks(write: Write, span: Span) -> dict[int, Path]:
    paths = {}
    for rank, starts in START_US.items():
        events, dice = [], random.Random(rank)
        for number, (kind, name) in enumerate(CALLS):
            group, members = next((g, m) for g, (k, m) in GROUPS.items() if k == kind and rank in m)
            end = max(START_US[member][number] for member in members) + TRANSFER_US
            args = {
                "External id": dice.randint(1, 10**6), "correlation": dice.randint(1, 10**6), "device": 0, "stream": 20,
                "Collective name": name, "In msg nelems": 4096, "Out msg nelems": 4096, "Group size": 2,
                "dtype": "BFloat16", "Process Group Name": group, "Process Group Ranks": str(members),
            }  # fmt: skip
            begin = starts[number]
            events.append(span("cpu_op", "record_param_comms", begin - 50.0, 20.0, **args))
            events.append(span("kernel", f"ncclDevKernel_{number}", begin, end - begin, pid=0, tid=20, **args))
        paths[rank] = write(events, rank=rank, world_size=4, name=f"rank{rank}.json")
    return paths


def waiting_us(found: Matching) -> dict[tuple[str, str, int], dict[int, int]]:
    return {
        (c.key.group, c.key.name, c.order): {
            rank: waited // 1000 for rank, waited in zip(c.ranks, c.waiting_ns, strict=True)
        }
        for c in found.collectives
    }


def test_tensor_parallel_groups_are_matched_by_group_and_order(four_ranks: dict[int, Path]) -> None:
    found = match(read(four_ranks.values()))
    assert waiting_us(found) == WAITING_US
    assert {c.transfer_ns for c in found.collectives} == {TRANSFER_US * 1000}
    assert all(c.complete and c.elements_in == 4096 for c in found.collectives)
    [second] = [c for c in found.collectives if c.key.group == "2" and c.key.name == "allreduce" and c.order == 1]
    assert second.last_rank == 2
    assert (found.incomplete, found.uneven, found.notes) == ((), (), ())


def test_groups_of_an_absent_rank_are_named_and_the_others_matched(four_ranks: dict[int, Path]) -> None:
    found = match(read([four_ranks[rank] for rank in (0, 1, 2)]))
    assert waiting_us(found) == {key: value for key, value in WAITING_US.items() if key[0] in "13"}
    assert [(gap.group, gap.missing) for gap in found.incomplete] == [("2", (3,)), ("4", (3,))]
    assert found.notes == (
        "group 2 of ranks [2, 3] is incomplete: no trace of [3]",
        "group 4 of ranks [1, 3] is incomplete: no trace of [3]",
    )


def assert_golden(folder: Path, names: list[str], golden: dict[str, Any]) -> Matching:
    found = match(read([folder / name for name in names]))
    assert len(found.collectives) == golden["matched"]
    assert len(found.uneven) == golden["uneven_keys"]
    assert [c.transfer_ns for c in found.collectives] == golden["transfer_ns"]
    assert [c.last_rank for c in found.collectives] == golden["last_to_start"]
    assert [max(c.start_ns) - min(c.start_ns) for c in found.collectives] == golden["start_skew_ns"]
    assert [c.end_spread_ns for c in found.collectives] == golden["end_skew_ns"]
    assert list(found.waiting_ns.values()) == golden["waiting_ns_per_rank"]
    return found


@pytest.mark.parametrize(("kind", "straggler"), [("ddp_eager", 0), ("static_bucketed", 1), ("static_cudagraph", 0)])
def test_own_captures_are_matched_as_golden(data: Path, kind: str, straggler: int) -> None:
    golden = json.loads((data / "h200_golden.json").read_text())["independent"]
    key = "+".join(f"gpt163m_{kind}_rank{rank}.json.gz" for rank in (0, 1))
    found = assert_golden(data, [f"h200_{kind}_rank{rank}.json.gz" for rank in (0, 1)], golden[key])
    assert found.straggler == straggler


@pytest.mark.parametrize("kind", ["fsdp_eager", "fsdp_compile", "static_reordered"])
def test_the_other_own_captures_are_matched_as_golden(shared_data: Path, kind: str) -> None:
    folder = shared_data / "h200"
    names = [f"gpt163m_{kind}_rank{rank}.json.gz" for rank in (0, 1)]
    assert_golden(folder, names, json.loads((folder / "golden.json").read_text())["independent"]["+".join(names)])


def test_dlrm_without_arguments_is_matched_by_kernel_name_and_finds_the_straggler(shared_data: Path) -> None:
    folder = shared_data / "public"
    golden = json.loads((folder / "golden.json").read_text())
    names = [f"param/dlrm/rank{rank}.json.gz" for rank in range(8)]
    found = assert_golden(folder, names, golden["independent"]["+".join(names)])
    assert found.straggler == 7
    lowest = sorted(found.waiting_ns, key=lambda rank: found.waiting_ns[rank])[:2]
    assert sorted(lowest) == golden["hta_0_5_0"]["param/dlrm"]["stragglers"]


def test_ranks_whose_clocks_differ_get_no_straggler_and_a_word(shared_data: Path) -> None:
    folder = shared_data / "public"
    names = [f"hta/sampled/rank{rank}.json.gz" for rank in (0, 1)]
    golden = json.loads((folder / "golden.json").read_text())["independent"]["+".join(names)]
    found = assert_golden(folder, names, golden)
    assert not found.clocks_agree
    assert found.straggler is None
    assert found.notes == (
        "times of the ranks do not compare: a transfer of -116.539 ms and ends 134.153 ms apart, expected at least 0 "
        "and at most 1 ms. The clocks differ, or the profiles began at different steps; no straggler is named",
    )


def test_collectives_run_unevenly_are_named_and_not_matched(write: Write, span: Span) -> None:
    args = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    paths = [
        write([span("kernel", "nccl", 10 * i, 5, **args) for i in range(count)], rank=rank, name=f"rank{rank}.json")
        for rank, count in ((0, 2), (1, 3))
    ]
    found = match(read(paths))
    assert found.collectives == ()
    assert found.notes == (
        "allreduce of group 0 is not matched: run a different number of times by rank: {0: 2, 1: 3}",
    )


def test_collectives_of_other_sizes_are_named_and_not_matched(write: Write, span: Span) -> None:
    paths = []
    for rank, elements in ((0, 5), (1, 6)):
        args = {"Collective name": "allreduce", "In msg nelems": elements, "Process Group Name": "0"}
        paths.append(write([span("kernel", "nccl", 1, 5, **args)], rank=rank, name=f"rank{rank}.json"))
    found = match(read(paths))
    assert [entry.why for entry in found.uneven] == ["the 0-th has other sizes by rank: {0: 5, 1: 6} elements"]


def test_gloo_works_of_cpu_only_ranks_are_matched(data: Path) -> None:
    found = match(read([data / f"gloo_ddp_rank{rank}.json.gz" for rank in (0, 1)]))
    assert [str(c.key) for c in found.collectives] == ["gloo:all_reduce"] * 4  # two buckets, two steps
    assert found.clocks_agree
    assert found.straggler == 0


def test_two_works_that_start_the_other_way_round_on_one_rank_are_matched_right(write: Write, span: Span) -> None:
    """A long and a short collective run on two threads; only one way of matching them is possible."""
    paths = [
        write(
            [span("user_annotation", "gloo:all_reduce", start, end - start, tid=tid) for start, end, tid in works],
            rank=rank,
            name=f"rank{rank}.json",
        )
        for rank, works in ((0, [(100, 900, 1), (300, 400, 2)]), (1, [(350, 401, 1), (420, 902, 2)]))
    ]
    found = match(read(paths))
    assert [(c.start_ns, c.transfer_ns) for c in found.collectives] == [
        ((100_000, 420_000), 480_000),
        ((300_000, 350_000), 50_000),
    ]


def test_one_rank_alone_matches_nothing(data: Path) -> None:
    found = match(read(data / "h200_ddp_eager_rank0.json.gz"))
    assert found.collectives == ()
    assert found.straggler is None
    assert repr(found) == "Matching(0 collectives, 1 groups incomplete, 0 uneven, straggler none)"
