"""What a group says is heard, and what was forgotten is not."""

import os
import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from kit.ranks.forkserver import RankProcess
from kit.ranks.link import Link
from kit.ranks.listening import Heard, Listening


@pytest.fixture
def rank() -> Iterator[tuple[RankProcess, socket.socket, int]]:
    control, theirs = socket.socketpair()
    status, told = os.pipe()
    crash = os.open(os.devnull, os.O_RDONLY)
    process = RankProcess(
        rank=0, pid=0, connection=Link(control.detach()), status=Connection(status, writable=False), out=-1, err=-1,
        crash=crash,
    )  # fmt: skip
    yield process, theirs, told
    process.close()
    theirs.close()
    os.close(told)


def heard(listening: Listening) -> list[tuple[str, RankProcess | None]]:
    return sorted(((what.name, process) for what, process in listening.wait(0)), key=lambda pair: pair[0])


def test_answers_ends_and_wishes_are_told_apart(rank: tuple[RankProcess, socket.socket, int]) -> None:
    process, theirs, told = rank
    output, stop = os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)
    listening = Listening(output=output, stop=stop)
    listening.add(process)
    assert listening.wait(0.01) == []
    theirs.send(b"x")
    assert listening.wait(None) == [(Heard.SAID, process)]
    assert not listening.someone_ended()
    os.write(told, b"0000")
    os.eventfd_write(stop, 1)
    assert heard(listening) == [("ENDED", process), ("SAID", process), ("STOP", None)]
    assert listening.someone_ended()
    listening.forget(process, Heard.ENDED)
    assert listening.someone_ended()  # it was heard, and it is gone all the same
    assert heard(listening) == [("SAID", process), ("STOP", None)]
    listening.forget(process)
    assert listening.wait(0) == [(Heard.STOP, None)]
    os.close(output)
    os.close(stop)
