"""Frames arrive as they were sent, small and large, in one message and in many."""

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from kit.ranks.link import SMALL_BYTES, Link, Parts
from kit.ranks.pool import Pool


@pytest.fixture(params=["unix", "tcp"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[Link, Link]]:
    if request.param == "unix":
        one, other = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            one = socket.create_connection(listener.getsockname())
            other, _ = listener.accept()
    links = Link(one.detach()), Link(other.detach())
    yield links
    for link in links:
        link.close()


def through(ends: tuple[Link, Link], parts: Parts) -> list[bytes]:
    sender = threading.Thread(target=ends[0].send, args=(parts,))
    sender.start()
    frames = [bytes(frame) for frame in ends[1].receive()]
    sender.join()
    return frames


@pytest.mark.parametrize(
    "sizes", [(0,), (1, 2, 3), (SMALL_BYTES,), (5, 3 * SMALL_BYTES, 7, 2_000_000, 0), (60_000,) * 9]
)
def test_frames_of_all_sizes_arrive(ends: tuple[Link, Link], sizes: tuple[int, ...]) -> None:
    frames = [os.urandom(size) for size in sizes]
    assert through(ends, frames) == frames
    assert through(ends, [memoryview(frame) for frame in frames]) == frames


def test_pooled_frames_arrive_again_and_again(ends: tuple[Link, Link]) -> None:
    pool = Pool()
    for size in (300_000, 700_000, 5_000_000, 300_000):
        frames = [b"head", os.urandom(size), os.urandom(size)]
        assert through(ends, pool.placed(frames)) == frames
    pool.close()


def test_what_arrives_can_be_written_to(ends: tuple[Link, Link]) -> None:
    ends[0].send([b"abc", memoryview(b"def")])
    for frame in ends[1].receive()[1:]:
        memoryview(frame)[0] = 1


def test_the_other_sides_end_is_an_error(ends: tuple[Link, Link]) -> None:
    ends[0].close()
    with pytest.raises(EOFError):
        ends[1].receive()
