"""Ranks for tests: always ended, and no test may hang."""

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from kit.ranks import engine
from kit.ranks.group import Ranks

SECONDS_A_TEST = 60


class Lines(list[tuple[int, str, str]]):
    """A sink that keeps what ranks wrote."""

    def __call__(self, rank: int, stream: str, text: str) -> None:
        self.append((rank, stream, text))


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    def over(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test took more than {SECONDS_A_TEST} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(SECONDS_A_TEST)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session", autouse=True)
def no_process_stays() -> Iterator[None]:
    yield
    engine.shutdown()


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def pair(lines: Lines) -> Iterator[Ranks]:
    """Two gloo ranks of one thread."""
    with engine.launch(2, threads=1, output=lines) as ranks:
        yield ranks


@pytest.fixture
def unchecked(lines: Lines) -> Iterator[Ranks]:
    """Two gloo ranks whose collectives are not compared first."""
    with engine.launch(2, threads=1, output=lines, check_collectives=False) as ranks:
        yield ranks
