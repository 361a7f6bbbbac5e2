"""What repo2docker would build for mybinder, read from its Dockerfile; nothing is built."""

import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BINDER = ROOT / "binder"


@pytest.fixture(scope="module")
def dockerfile() -> str:
    if find_spec("repo2docker") is None:
        pytest.skip("no jupyter-repo2docker here; it comes with the extra test")
    ran = subprocess.run(
        [sys.executable, "-m", "repo2docker", "--no-build", "--debug", "."],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


def test_the_python_is_new_enough(dockerfile: str) -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    oldest = tuple(map(int, needed.removeprefix(">=").split(".")))
    chosen = re.fullmatch(r"python-(\d+)\.(\d+)", (BINDER / "runtime.txt").read_text().strip())
    assert chosen is not None, "repo2docker reads only x.y"
    assert tuple(map(int, chosen.groups())) >= oldest
    # The name of the lock file that is copied, with "." and "-" as -2e and -2d.
    assert f"environment-2epy-2d{chosen[1]}-2e{chosen[2]}" in dockerfile


def test_requirements_are_installed_after_the_repository_is_copied(dockerfile: str) -> None:
    lines = [line.strip() for line in dockerfile.splitlines() if not line.strip().startswith("#")]
    copied = next(n for n, line in enumerate(lines) if re.match(r"COPY .*src/ \$\{REPO_DIR\}/?$", line))
    installed = [n for n, line in enumerate(lines) if 'install --no-cache-dir -r "binder/requirements.txt"' in line]
    assert installed, "no line installs binder/requirements.txt"
    assert min(installed) > copied


def test_every_system_package_is_in_the_image(dockerfile: str) -> None:
    listed = (BINDER / "apt.txt").read_text().split() if (BINDER / "apt.txt").exists() else []
    assert [name for name in listed if not re.search(rf"\b{re.escape(name)}\b", dockerfile)] == []


def test_torch_is_pinned_to_the_cpu_wheels() -> None:
    lines = (BINDER / "requirements.txt").read_text().splitlines()
    assert "--extra-index-url https://download.pytorch.org/whl/cpu" in lines
    (constraint,) = [line.removeprefix("-c ") for line in lines if line.startswith("-c ")]
    assert (BINDER / constraint).resolve() == ROOT / "constraints-cpu.txt"
