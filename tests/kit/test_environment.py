"""Which torch the environment gets, and what is said when it cannot be made. Nothing is downloaded."""

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import environment
from kit.environment import EnvironmentSetupError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def index() -> Iterator[str]:
    """A package index of the test's own that answers every HEAD."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def nowhere() -> str:
    """An address of this machine at which nothing listens."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def fake_python(folder: Path, *, says: str, status: int = 0) -> Path:
    """An interpreter that answers every question in the same way."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_the_pin_is_that_of_the_constraints_file() -> None:
    assert environment.read_pin(ROOT / "constraints-cpu.txt").startswith("torch==2.")


def test_a_constraints_file_without_torch_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("numpy==2\n")
    with pytest.raises(EnvironmentSetupError, match=r"c\.txt has no line torch==VERSION"):
        environment.read_pin(tmp_path / "c.txt")


def test_an_index_that_answers_is_named_to_pip_and_the_cpu_wheel_pinned(index: str, tmp_path: Path) -> None:
    source = environment.choose_cpu_torch(fake_python(tmp_path, says=""), pin="torch==2.13.0", index=index)
    assert source.pin == "torch==2.13.0+cpu"
    assert source.pip_arguments == ("-c", "constraints-cpu.txt", "--extra-index-url", index)


def test_without_the_index_pip_as_it_is_set_up_is_asked_for_the_cpu_wheel(nowhere: str, tmp_path: Path) -> None:
    source = environment.choose_cpu_torch(fake_python(tmp_path, says=""), pin="torch==2.13.0", index=nowhere)
    assert source.pin == "torch==2.13.0+cpu"
    assert source.pip_arguments == ("-c", "constraints-cpu.txt")


def test_without_any_cpu_wheel_the_size_is_said(nowhere: str, tmp_path: Path) -> None:
    python = fake_python(tmp_path, says="", status=1)
    source = environment.choose_cpu_torch(python, pin="torch==2.13.0", index=nowhere)
    assert source.pin == "torch==2.13.0"
    assert "some GB" in source.words


def test_own_torch_is_pinned_with_its_local_version(tmp_path: Path) -> None:
    source = environment.choose_own_torch(fake_python(tmp_path, says="2.11.0+cu130"))
    assert source.pin == "torch==2.11.0+cu130"


def test_own_torch_that_is_not_there_or_too_old_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"has no torch; expected torch >= 2\.11 in it"):
        environment.choose_own_torch(fake_python(tmp_path, says="", status=1))
    with pytest.raises(EnvironmentSetupError, match=r"has torch 2\.9\.1\+cu128; expected torch >= 2.11"):
        environment.choose_own_torch(fake_python(tmp_path, says="2.9.1+cu128"))


def test_an_environment_made_for_the_other_torch_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    fake_python(tmp_path / "bin", says="")
    (tmp_path / "kit-torch.txt").write_text("cpu\n")
    with pytest.raises(EnvironmentSetupError, match="was made with TORCH=cpu, now TORCH=own is asked for"):
        environment.make_venv(tmp_path, torch="own")


def test_a_torch_that_somebody_else_installed_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "bin").mkdir()
    python = fake_python(tmp_path / "bin", says="2.12.0+cu130")
    with pytest.raises(EnvironmentSetupError, match=r"has torch 2\.12\.0\+cu130, which TORCH=cpu would replace"):
        environment.make_venv(tmp_path, torch="cpu")
    assert environment.make_venv(tmp_path, torch="own") == python


@pytest.mark.slow
def test_an_own_environment_sees_the_torch_of_the_python_that_made_it_and_nothing_else(tmp_path: Path) -> None:
    python = environment.make_venv(tmp_path / "venv", torch="own")
    assert environment.ask_torch(python) == environment.ask_torch(Path(sys.executable))
    ask = "import torch, importlib.util as u; print(torch.ones(2).sum().item(), u.find_spec('jupyterlab'))"
    said = subprocess.run([str(python), "-W", "ignore", "-c", ask], capture_output=True, text=True, check=True)
    assert said.stdout == "2.0 None\n"


def test_pip_that_fails_shows_its_last_words(tmp_path: Path) -> None:
    source = environment.TorchSource(pin="torch==1", pip_arguments=(), words="")
    python = fake_python(tmp_path, says="no matching distribution", status=3)
    with pytest.raises(EnvironmentSetupError) as caught:
        environment.install(python, source=source, extras=["test"], log=tmp_path / "install.log")
    assert str(caught.value) == (
        f"no matching distribution\npip ended with status 3; its words are in {tmp_path / 'install.log'}"
    )
    assert (tmp_path / "kit-constraints.txt").read_text() == "torch==1\n"


def test_the_last_step_of_pip_is_said_not_its_warnings(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Collecting torch\n  Downloading torch-2.13.whl\nWARNING: x\n  Successfully uninstalled y\n")
    assert environment.last_step(log) == "Downloading torch-2.13.whl"


def test_make_says_which_python_it_needs(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo 'Python 3.9.2'\nexit 1\n")
    python.chmod(0o755)
    ran = subprocess.run(
        ["make", "run", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode != 0
    assert f"PYTHON={python} is Python 3.9.2; expected Python 3.11 or newer." in ran.stdout
    assert "apt-get install -y python3 python3-venv" in ran.stdout


def test_make_without_a_target_lists_every_command() -> None:
    said = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("run", "lab", "test", "bench", "lint", "help", "clean"):
        assert f"make {target} " in said


def test_clean_leaves_an_environment_that_make_did_not_make(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    said = subprocess.run(
        ["make", "--dry-run", "clean", f"VENV={tmp_path / 'venv'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    guard = said[: said.index("rm -rf out")]
    ran = subprocess.run(["sh", "-c", guard], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout == f"{tmp_path / 'venv'} was not made by make: left as it is\n"
    assert (tmp_path / "venv").exists()
