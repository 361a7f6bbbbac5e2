"""Cut one's own sockets by inode."""

import os
import re
import socket
import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from kit._torch import groups
from kit.ranks import sockets


def test_a_cut_ends_reading_on_owned_connections_only() -> None:
    before = sockets.inodes()
    ours, theirs = socket.socketpair()
    owned = sockets.inodes() - before
    other, far = socket.socketpair()
    with ours, theirs, other, far:
        assert len(owned) == 2
        shut = sockets.cut(owned)
        assert set(shut) == owned
        assert ours.recv(1) == b""
        assert theirs.recv(1) == b""
        for duplicate in shut.values():
            duplicate.close()
        other.send(b"x")
        assert far.recv(1) == b"x"


def test_a_listening_socket_is_never_cut() -> None:
    before = sockets.inodes()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        owned = sockets.inodes() - before
        assert sockets.cut(owned) == {}
        with socket.create_connection(listener.getsockname()[:2]) as client:
            accepted, _ = listener.accept()
            accepted.close()
            assert client.recv(1) == b""


def test_a_connection_carries_what_moved_just_now_or_waits_to_be_read() -> None:
    before = sockets.inodes()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as ours, listener.accept()[0] as theirs:
            owned = sockets.inodes() - before
            ours.sendall(b"xy")
            assert sockets.carry(owned, besides_port=0)
            theirs.recv(1)
            time.sleep(0.1)
            assert sockets.carry(owned, besides_port=0), "a byte has not been read"
            theirs.recv(1)
            assert not sockets.carry(owned, besides_port=0)
            ours.sendall(b"z")
            theirs.recv(1)
            assert not sockets.carry({str(os.fstat(ours.fileno()).st_ino)}, besides_port=port)


def test_a_rank_that_waits_for_a_peer_of_gloo_to_connect_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    before = sockets.inodes()
    store, port = groups.serve_store("127.0.0.1")
    client = groups.connect_store("127.0.0.1", port, timeout=timedelta(seconds=60))
    ended: list[str] = []

    def join() -> None:
        try:
            dist.ProcessGroupGloo(client, 1, 2, timeout=timedelta(seconds=60)).barrier().wait()
        except RuntimeError as error:
            ended.append(str(error))

    rank = threading.Thread(target=join, daemon=True)
    rank.start()
    # A peer that has told its address and left: at the highest port, since of two ranks the one at the lower one waits.
    told = re.sub(rb"\x02\x00..(?=\x7f\x00\x00\x01)", b"\x02\x00\xff\xff", store.get("0/1"), flags=re.DOTALL)
    store.set("0/0", told)
    rank.join(0.5)
    assert rank.is_alive()
    sockets.hang_up_on(sockets.inodes() - before, peers=2)
    rank.join(5.0)
    assert len(ended) == 1
    assert "Connection" in ended[0]
