"""Ranks over SSH, to a server of the test's own on the loopback address."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.ranks import engine

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
CONF = """
Port {port}
ListenAddress 127.0.0.1
HostKey {d}/host
AuthorizedKeysFile {d}/user.pub
StrictModes no
UsePAM no
PermitRootLogin yes
PidFile none
Subsystem sftp internal-sftp
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """Host and port of an SSH server, and the arguments with which ssh gets in."""
    if not Path(SSHD).exists() or shutil.which("ssh") is None or os.getuid() != 0:
        pytest.skip("needs sshd and ssh (openssh-server, openssh-client), and root")
    pytest.importorskip("ipyparallel")
    d = tmp_path_factory.mktemp("ssh")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", d / name], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (d / "conf").write_text(CONF.format(port=port, d=d))
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd shuts itself in
    with subprocess.Popen([SSHD, "-D", "-f", d / "conf", "-E", d / "log"]) as process:
        try:
            deadline = time.monotonic() + 10
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline, (d / "log").read_text()
                    time.sleep(0.05)
            known = ["-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={d}/known"]
            yield f"127.0.0.1:{port}", ["-i", str(d / "user"), *known]
        finally:
            process.terminate()


def test_a_group_over_ssh_works_and_leaves_nothing(server: tuple[str, list[str]], tmp_path: Path) -> None:
    host, arguments = server
    with engine.launch(
        2, engine="ssh", host="127.0.0.1", hosts={host: 2}, ssh_args=arguments, folder=tmp_path, threads=1
    ) as ranks:
        assert ranks.execute("y = torch.ones(1)\ndist.all_reduce(y)\ny.item()") == [2.0, 2.0]
        assert all(ranks.execute("import os\nos.environ.get('SSH_CONNECTION', '')")), "the ranks are behind ssh"
    assert list(tmp_path.iterdir()) == []
