"""Ranks for tests: always ended, and no test may hang.

A module that says `ENGINES = (...)` has its tests with `pair` or `unchecked` run on each of these engines.
"""

import logging
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kit.ranks import engine
from kit.ranks.group import Ranks

SECONDS_A_TEST = 60


class Lines(list[tuple[int, str, str]]):
    """A sink that keeps what ranks wrote."""

    def __call__(self, rank: int, stream: str, text: str) -> None:
        self.append((rank, stream, text))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    engines = getattr(metafunc.module, "ENGINES", None)
    if engines is not None and "engine_name" in metafunc.fixturenames:
        metafunc.parametrize("engine_name", engines)


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    def over(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test took more than {SECONDS_A_TEST} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(SECONDS_A_TEST)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def ctrl_c_stays_the_persons_own() -> Iterator[None]:
    """A handler of the kit that outlives its call would swallow every later Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    yield
    after = signal.signal(signal.SIGINT, before)
    assert after is signal.default_int_handler, f"SIGINT is answered by {after} after the test"


@pytest.fixture(scope="session", autouse=True)
def no_process_stays() -> Iterator[None]:
    yield
    engine.shutdown()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An ipyparallel Cluster of two engines on the loopback address; groups of many tests run on it in turn."""
    ipyparallel = pytest.importorskip("ipyparallel")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = ipyparallel.Cluster(
            n=2,
            controller_ip="127.0.0.1",
            profile_dir=str(tmp_path_factory.mktemp("cluster")),
            log_level=logging.CRITICAL,
            load_profile=False,
            shutdown_atexit=False,
            delay=0.0,
        )
        try:
            one.start_cluster_sync()
            yield one
        finally:
            one.stop_cluster_sync()


@pytest.fixture
def engine_name() -> str:
    return "local"


@pytest.fixture
def engine_options(engine_name: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What `launch` must be told to use the engine of this test."""
    return {} if engine_name == "local" else {"engine": request.getfixturevalue("cluster")}


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def pair(lines: Lines, engine_options: dict[str, Any]) -> Iterator[Ranks]:
    """Two gloo ranks of one thread."""
    with engine.launch(2, threads=1, output=lines, **engine_options) as ranks:
        yield ranks


@pytest.fixture
def unchecked(lines: Lines, engine_options: dict[str, Any]) -> Iterator[Ranks]:
    """Two gloo ranks whose collectives are not compared first."""
    with engine.launch(2, threads=1, output=lines, check_collectives=False, **engine_options) as ranks:
        yield ranks


@pytest.fixture
def root() -> Path:
    """The folder of the repository."""
    return Path(__file__).parents[3]
