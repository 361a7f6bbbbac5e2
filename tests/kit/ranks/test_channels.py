"""Connections over the network: proved on both sides, strangers dropped, and what was written is waited for."""

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from kit.ranks.channels import Label, Landing, NoConnectionError, await_delivery, connect

OUT = Label(number=1, life=1, channel="out")


@pytest.fixture
def landing() -> Iterator[Landing]:
    one = Landing("127.0.0.1")
    yield one
    one.close()


def dial(landing: Landing, secret: bytes, label: Label) -> list[object]:
    """Connect in a thread; the list gets the socket or the error."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(connect(landing.address, secret, label))
        except OSError as error:
            found.append(error)

    threading.Thread(target=run).start()
    return found


def ended(found: list[object]) -> object:
    deadline = time.monotonic() + 10
    while not found:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found[0]


def pair_of(landing: Landing) -> tuple[socket.socket, socket.socket]:
    dialled = dial(landing, landing.secret, OUT)
    here = landing.accept([OUT], seconds=5)[OUT]
    there = ended(dialled)
    assert isinstance(there, socket.socket)
    return here, there


def test_a_connection_with_the_secret_carries_bytes_both_ways(landing: Landing) -> None:
    here, there = pair_of(landing)
    with here, there:
        there.sendall(b"a line\n")
        here.sendall(b"a command")
        assert here.recv(100) == b"a line\n"
        assert there.recv(100) == b"a command"
        assert here.getblocking()
        assert there.getblocking()


def test_it_listens_at_the_given_address_only(landing: Landing) -> None:
    assert landing.address[0] == "127.0.0.1"


def test_another_secret_is_refused_before_anything_is_read(landing: Landing) -> None:
    dialled = dial(landing, b"x" * 32, OUT)
    with pytest.raises(NoConnectionError, match=r"0 of 1 connections came to 127\.0\.0\.1:\d+ within 0\.5 s"):
        landing.accept([OUT], seconds=0.5)
    assert isinstance(ended(dialled), OSError)


def test_a_stranger_that_says_nothing_does_not_keep_the_ranks_out(landing: Landing) -> None:
    with socket.create_connection(landing.address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + b" " * 400)
        here, there = pair_of(landing)
        here.close()
        there.close()


def test_a_rank_refuses_a_notebook_that_does_not_know_the_secret() -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def answer() -> None:
            connection, _ = impostor.accept()
            with connection:
                connection.sendall(os.urandom(32))
                connection.recv(1000)
                connection.sendall(os.urandom(32))

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OSError, match="does not know the secret of this group; expected the notebook"):
            connect(impostor.getsockname(), b"s" * 32, OUT)
        thread.join()


def test_an_unexpected_connection_is_dropped_and_waiting_can_be_given_up(landing: Landing) -> None:
    dialled = dial(landing, landing.secret, Label(number=1, life=7, channel="out"))
    asked = []

    def still() -> None:
        asked.append(1)
        if len(asked) > 5:
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        landing.accept([OUT], seconds=30, still=still)
    there = ended(dialled)
    assert isinstance(there, socket.socket)
    assert there.recv(1) == b""
    there.close()


def test_delivery_waits_for_the_other_side(landing: Landing) -> None:
    here, there = pair_of(landing)
    with here, there:
        there.setblocking(False)
        written = 0
        try:
            while True:
                written += there.send(b"x" * 65536)
        except BlockingIOError:
            pass
        begun = time.monotonic()
        await_delivery(there.fileno(), seconds=0.3)
        assert time.monotonic() - begun >= 0.3, "nobody reads, so the send queue does not empty"

        def read() -> None:
            count = 0
            while count < written:
                count += len(here.recv(1 << 20))

        thread = threading.Thread(target=read)
        thread.start()
        await_delivery(there.fileno(), seconds=5.0)
        assert time.monotonic() - begun < 3.0
        thread.join()


def test_a_pipe_needs_no_waiting() -> None:
    read, write = os.pipe()
    os.write(write, b"unread")
    begun = time.monotonic()
    await_delivery(write)
    assert time.monotonic() - begun < 0.1
    os.close(read)
    os.close(write)
