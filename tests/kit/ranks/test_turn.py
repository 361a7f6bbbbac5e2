"""Calls of two threads take turns, and Ctrl-C in the one that waits neither stops the other nor loses the turn."""

import contextlib
import os
import signal
import threading
import time

import pytest

from kit.ranks.errors import ClosedError, RanksError
from kit.ranks.group import Ranks
from kit.ranks.turn import Turn


def test_ctrl_c_while_another_thread_calls_is_for_the_one_that_waits(pair: Ranks) -> None:
    found: list[object] = []
    other = threading.Thread(target=lambda: found.append(pair.execute("import time; time.sleep(3.0); rank")))
    other.start()
    while not pair._calls.under_way:
        time.sleep(0.01)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begun, got = time.monotonic(), None
    with contextlib.suppress(KeyboardInterrupt):
        got = pair.execute("rank")
    seen = f"{got} after {time.monotonic() - begun:.2f} s, SIGINT is answered by {signal.getsignal(signal.SIGINT)}"
    assert got is None, f"{seen}, the other call gave {found}"
    other.join()
    assert found == [[0, 1]]
    assert pair.execute("rank") == [0, 1]


def test_ctrl_c_as_a_call_begins_to_wait_is_not_lost_and_not_the_other_calls(
    pair: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []
    other = threading.Thread(target=lambda: found.append(pair.execute("import time; time.sleep(1.0); rank")))
    other.start()
    while not pair._calls.under_way:
        time.sleep(0.01)
    disarm = Turn._disarm

    def press_first(self: Turn) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGINT)
        disarm(self)

    monkeypatch.setattr(Turn, "_disarm", press_first)
    with pytest.raises(KeyboardInterrupt):
        pair.execute("rank")
    monkeypatch.undo()
    other.join()
    assert found == [[0, 1]]


def test_ctrl_c_is_the_persons_own_again_after_a_call(pair: Ranks) -> None:
    before = signal.getsignal(signal.SIGINT)
    pair.execute("rank")
    assert signal.getsignal(signal.SIGINT) is before
    pair.close()
    with pytest.raises(ClosedError):
        pair.execute("rank")
    assert signal.getsignal(signal.SIGINT) is before
    assert not pair._calls.under_way


def test_a_sink_that_calls_back_is_told_so(pair: Ranks) -> None:
    with (
        pair.output_to(lambda rank, stream, line: pair.run(int) and None),
        pytest.raises(RanksError, match="under way"),
    ):
        pair.execute("print(1)")
    assert pair.execute("rank") == [0, 1]
