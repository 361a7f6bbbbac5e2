"""Large values reach several ranks through memory that has no name and is gone with its users."""

import gc
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from kit.ranks import engine, loan
from kit.ranks.errors import DeadRankError, RankError
from kit.ranks.group import Ranks


@pytest.fixture(autouse=True)
def small_loans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loan, "LOAN_BYTES", 1 << 16)


def mapped(pid: int) -> int:
    """How many maps of lent memory a process has."""
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:kit-loan")


def entries(folder: str) -> set[str]:
    return {entry.name for entry in Path(folder).iterdir()}


def test_a_large_tensor_is_mapped_by_every_rank_and_equal(pair: Ranks) -> None:
    sent = torch.arange(100_000)
    pair.push(data=sent, array=np.arange(50_000))
    assert [mapped(pid) for pid in pair.pids.values()] == [2, 2]
    assert pair.execute("data.sum().item(), int(array.sum())") == [(sent.sum().item(), 1_249_975_000)] * 2
    assert mapped(os.getpid()) == 0


def test_what_one_rank_writes_no_other_sees(pair: Ranks) -> None:
    pair.push(data=torch.zeros(100_000))
    pair.execute("data += rank + 1")
    assert pair.execute("data.max().item()") == [1.0, 2.0]


def test_the_memory_goes_with_the_name(pair: Ranks) -> None:
    pair.push(data=torch.zeros(100_000))
    pair.execute("del data; import gc; gc.collect()")
    assert [mapped(pid) for pid in pair.pids.values()] == [0, 0]


def test_one_rank_alone_gets_a_copy_through_its_socket() -> None:
    with engine.launch(1, threads=1) as ranks:
        ranks.push(data=torch.ones(100_000))
        assert mapped(ranks.pids[0]) == 0
        assert ranks.pull("data.sum().item()") == [100_000.0]


def test_nothing_stays_after_a_killed_rank_and_a_close() -> None:
    files, open_before = entries("/dev/shm"), len(entries("/proc/self/fd"))
    with engine.launch(2, threads=1) as ranks:
        ranks.push(data=torch.ones(100_000))
        os.kill(ranks.pids[1], signal.SIGKILL)
        with pytest.raises((RankError, DeadRankError)):
            ranks.push(data=torch.ones(100_000))
    gc.collect()
    assert entries("/dev/shm") <= files
    assert len(entries("/proc/self/fd")) <= open_before


def test_where_no_memory_can_be_lent_it_goes_through_the_sockets(pair: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, flags: int) -> int:
        raise OSError("no memory")

    monkeypatch.setattr(os, "memfd_create", refuse)
    pair.push(data=torch.ones(100_000))
    assert [mapped(pid) for pid in pair.pids.values()] == [0, 0]
    assert pair.pull("data.sum().item()") == [100_000.0] * 2
