"""Memory kept for large frames: bounded, given back, and what was read never changes."""

import os
import signal
from pathlib import Path

import pytest
import torch

from kit.ranks import engine, pool
from kit.ranks.errors import DeadRankError, RankError
from kit.ranks.group import Ranks
from kit.ranks.pool import Pool, Pooled

MEGABYTE = 1 << 20


def mapped(pid: int) -> list[int]:
    """Sizes in bytes of the pooled memory that a process maps."""
    lines = [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "memfd:kit-pool" in line]
    return [int(end, 16) - int(begin, 16) for begin, end in (line.split()[0].split("-") for line in lines)]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_was_pulled_stays_when_more_comes(pair: Ranks) -> None:
    pair.execute("x = torch.full((500_000,), float(rank))")
    first = pair.pull("x")
    pair.execute("x += 10")
    second = pair.pull("x")
    assert [value.unique().tolist() for value in (*first, *second)] == [[0.0], [1.0], [10.0], [11.0]]
    first[0] += 100  # it is the notebook's own
    assert pair.execute("x.max().item()") == [10.0, 11.0]


def test_what_was_pushed_stays_when_more_comes_and_no_rank_sees_another_write(pair: Ranks) -> None:
    pair.push(a=torch.zeros(500_000))
    pair.push(b=torch.ones(500_000))
    pair.execute("a += rank + 5")
    assert pair.execute("a.unique().tolist(), b.unique().tolist()") == [([5.0], [1.0]), ([6.0], [1.0])]


def test_several_tensors_at_once_and_more_than_the_pool_holds(pair: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "POOL_BYTES", 4 * MEGABYTE)
    sent = [torch.arange(400_003) + n for n in range(4)]  # 3.2 MB each: one fits
    pair.push(sent=sent)
    back = pair.run(lambda held: [one + 0 for one in held], pair["sent"])
    assert all(torch.equal(one, there) for each in back for one, there in zip(sent, each, strict=True))


def test_memory_is_kept_bounded_and_given_back() -> None:
    before = descriptors()
    with engine.launch(2, threads=1) as ranks:
        for size in (100_000, 500_000, 2_500_000, 300_000):
            ranks.push(data=torch.ones(size))
            assert ranks.pull("data.sum().item(), data")[1][0] == size
        kept = {pid: mapped(pid) for pid in (os.getpid(), *ranks.pids.values())}
        # its own, and one of each that sends to it
        assert [len(sizes) for sizes in kept.values()] == [3, 2, 2]
        assert max(size for sizes in kept.values() for size in sizes) <= (16 << 20) + 4096
    assert mapped(os.getpid()) == []
    assert descriptors() <= before


def test_a_rank_that_was_killed_leaves_nothing_and_the_next_one_gets_the_value() -> None:
    files = set(Path("/dev/shm").iterdir())
    with engine.launch(2, threads=1) as ranks:
        ranks.push(data=torch.ones(500_000))
        os.kill(ranks.pids[1], signal.SIGKILL)
        with pytest.raises((RankError, DeadRankError)):
            ranks.push(data=torch.ones(500_000))
        ranks.replace(1)
        ranks.push(data=torch.full((500_000,), 2.0))
        assert ranks.pull("data.sum().item()") == [1_000_000.0] * 2
    assert mapped(os.getpid()) == []
    assert set(Path("/dev/shm").iterdir()) <= files


def test_memory_that_somebody_still_reads_is_left_to_it() -> None:
    sender = Pool()
    data = memoryview(bytearray(b"a" * MEGABYTE))
    (first,) = sender.placed([data])
    assert isinstance(first, Pooled)
    first.segment.readers = 1
    first.segment.mark(0, True)
    (second,) = sender.placed([data])
    assert isinstance(second, Pooled)
    assert second.segment is not first.segment
    (third,) = sender.placed([data])
    assert isinstance(third, Pooled)
    assert third.segment is second.segment
    sender.close()
