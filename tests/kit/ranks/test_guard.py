"""What the guard does to a rank whose epoch ends; the faults that it is for are in test_conformance*.py."""

import threading

import pytest

from kit.ranks.errors import InterruptedRanksError
from kit.ranks.group import Ranks


def test_a_stop_in_the_middle_of_large_transfers_loses_no_rank(unchecked: Ranks) -> None:
    # gloo lets nobody go who waits for a message that is read or written in part when its connection ends: without
    # regard to that 3 of 14 such stops lost a rank
    cell = (
        "mine, both = torch.ones(3_000_000), [torch.ones(3_000_000) for _ in range(2)]\n"
        "while True:\n    dist.all_gather(both, mine)\n    dist.all_reduce(mine)"
    )
    for _ in range(5):
        threading.Timer(0.3, unchecked.interrupt).start()
        with pytest.raises(InterruptedRanksError):
            unchecked.execute(cell)
        assert unchecked.alive == (0, 1)
        assert unchecked.execute("y = torch.ones(1)\ndist.all_reduce(y)\ny.item()") == [2.0, 2.0]
