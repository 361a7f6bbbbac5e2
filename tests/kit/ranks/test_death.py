"""What a rank wrote as it died is told, also when it comes after its exit code, as over a network."""

import os
import signal
import socket
import threading
import time

import pytest

from kit.ranks import death
from kit.ranks.death import death_of
from kit.ranks.output import Output

# As faulthandler writes them; the second thread ran user code.
_STACKS = (
    "Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n"
    f'  File "{threading.__file__}", line 1 in wait\n\n'
    "Current thread 0x2 (most recent call first):\n"
    f'  File "{__file__}", line 3 in inner\n  File "{__file__}", line 1 in <module>\n'
)


def frames(crash: int) -> list[int]:
    failure = death_of(1, -signal.SIGABRT, how="", crash=crash, last_errors=())
    assert failure.died
    return [frame.line for frame in failure.frames]


def test_stacks_that_come_in_pieces_and_late_are_read_whole() -> None:
    ours, theirs = socket.socketpair()

    def write() -> None:
        for n in range(0, len(_STACKS), 40):
            time.sleep(0.02)
            theirs.send(_STACKS[n : n + 40].encode())
        theirs.close()

    with ours:
        writer = threading.Thread(target=write)
        writer.start()
        assert frames(ours.fileno()) == [1, 3]
        writer.join()


def test_a_process_that_holds_the_pipe_open_delays_the_news_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(death, "LATE_SECONDS", 0.2)
    read, write = os.pipe()
    os.write(write, _STACKS.encode())
    begun = time.monotonic()
    assert frames(read) == [1, 3]
    assert 0.1 < time.monotonic() - begun < 1.0
    os.close(write)
    assert frames(read) == []
    os.close(read)


def test_last_words_that_come_late_are_waited_for() -> None:
    reader = Output()
    (out, write_out), (err, write_err) = os.pipe(), os.pipe()
    reader.add(0, out, err)
    os.close(write_out)

    def write() -> None:
        time.sleep(0.2)
        os.write(write_err, b"what(): gone\n")
        os.close(write_err)

    writer = threading.Thread(target=write)
    writer.start()
    reader.await_end(0, seconds=5.0)
    assert reader.last_errors(0) == ("what(): gone",)
    writer.join()
    reader.close()
