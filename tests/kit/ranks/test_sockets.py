"""Cut one's own sockets by inode."""

import socket

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
