"""A group is ended in the middle of its traffic, not while everybody waits."""

import random
import signal
import threading

import pytest

from kit.ranks.errors import InterruptedRanksError, RankError
from kit.ranks.group import Ranks

BUSY = "while True:\n    dist.all_reduce(a)\n    dist.all_reduce(b)"


def test_stop_in_a_fast_loop_of_collectives_loses_no_rank(unchecked: Ranks) -> None:
    # With both directions of the sockets shut, one of three such stops left a rank in gloo's waitSend for ever.
    unchecked.execute("a, b = torch.ones(16, 16), torch.ones(16)")
    for _ in range(30):
        threading.Timer(random.uniform(0.02, 0.2), unchecked.interrupt).start()
        with pytest.raises(InterruptedRanksError):
            unchecked.execute(BUSY)
        assert unchecked.alive == (0, 1)
    assert unchecked.epoch == 30


def test_a_rank_that_raises_in_the_first_call_after_replace_frees_the_other(pair: Ranks) -> None:
    # The epoch without a group ends without an abort; a watchdog that waits for one misses those of later epochs.
    with pytest.raises(RankError):
        pair.execute(f"import os\nif rank == 1: os.kill(os.getpid(), {int(signal.SIGKILL)})\ndist.barrier()")
    pair.replace(1)
    with pytest.raises(RankError) as caught:
        pair.execute("if rank == 1: raise ValueError('boom')\ndist.all_reduce(torch.ones(1))", timeout=10)
    assert [failure.type for failure in caught.value.causes] == ["ValueError"]
    assert pair.alive == (0, 1)
