"""The process that holds a cluster, with clients of our own in place of ipyparallel's."""

import socket
from types import SimpleNamespace

import pytest

from kit.ranks import cluster_process


class Client(SimpleNamespace):
    closed = False

    def close(self) -> None:
        self.closed = True


def test_an_engine_whose_registration_was_told_to_nobody_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_process, "_NEWS_SECONDS", 0.2)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        keeper = cluster_process._Keeper(ours)
        deaf, hearing = Client(ids=[0]), Client(ids=[0, 1])
        keeper._client, keeper._connect = deaf, lambda: hearing
        running = "; Slurm job 7 is RUNNING"
        keeper._jobs = SimpleNamespace(trouble=lambda: "", waiting=lambda: running)  # type: ignore[assignment]
        keeper._await_engines(2)
    assert keeper._client is hearing
    assert deaf.closed and not hearing.closed


def test_while_a_job_waits_in_the_queue_nobody_connects_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_process, "_NEWS_SECONDS", 0.0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        keeper = cluster_process._Keeper(ours)
        keeper._client = client = Client(ids=[])
        states = iter(["; Slurm job 7 is PENDING"] * 4)

        def waiting() -> str:
            state = next(states, None)
            if state is None:
                client.ids = [0]
            return state or "; Slurm job 7 is PENDING"

        keeper._jobs = SimpleNamespace(trouble=lambda: "", waiting=waiting)  # type: ignore[assignment]
        keeper._await_engines(1)
    assert keeper._client is client and not client.closed
