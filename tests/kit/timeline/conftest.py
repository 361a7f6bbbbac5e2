"""Hand-made traces: events written as Kineto writes them, times in microseconds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Event = dict[str, Any]
Writer = Callable[..., Path]


def span(cat: str, name: str, ts: float | int, dur: float | int, *, pid: Any = 1, tid: Any = 1, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


@pytest.fixture(scope="session", name="span")
def span_fixture() -> Callable[..., Event]:
    return span


@pytest.fixture(scope="session")
def data() -> Path:
    """The small captures that are part of the repository."""
    return Path(__file__).parents[2] / "data"


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    """Write a trace of given events and return its path."""

    def write_trace(
        events: list[Event],
        *,
        rank: int | None = 0,
        world_size: int = 1,
        base_ns: int | None = 0,
        name: str = "trace.json",
    ) -> Path:
        header: dict[str, Any] = {} if base_ns is None else {"baseTimeNanoseconds": base_ns}
        if rank is not None:
            header["distributedInfo"] = {"backend": "gloo", "rank": rank, "world_size": world_size}
        path = tmp_path / name
        path.write_text(json.dumps({**header, "traceEvents": events, "traceName": name}, indent=1))
        return path

    return write_trace
