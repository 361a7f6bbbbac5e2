"""Make the virtual environment of `make run` and `make test`, with the right torch in it.

Which torch is the whole difficulty. From the default index `torch==2.13.0` brings gigabytes of CUDA,
so the CPU wheel is pinned with its local version wherever that can be had; with `--torch own` the
torch that is already there is pinned instead, so that pip can never take another.
"""

import argparse
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kit import own_torch, preflight

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CONSTRAINTS = Path("constraints-cpu.txt")
OLDEST_TORCH = (2, 11)
SAY_EVERY_SECONDS = 10.0
PIP_STEPS = ("Obtaining", "Collecting", "Downloading", "Building", "Installing", "Preparing")
ASK_TORCH = "from importlib.metadata import version; print(version('torch'))"


class EnvironmentSetupError(RuntimeError):
    """The environment could not be made; the message says what was seen and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSource:
    """Where torch comes from: the pin, more arguments for pip, and how to say it."""

    pin: str
    pip_arguments: tuple[str, ...]
    words: str


def read_pin(constraints: Path = CONSTRAINTS) -> str:
    """The line `torch==...` of the constraints file, without its comment."""
    for line in constraints.read_text().splitlines():
        pin = line.split("#")[0].strip()
        if pin.startswith("torch=="):
            return pin
    raise EnvironmentSetupError(f"{constraints} has no line torch==VERSION; restore it from the repository")


def is_reachable(url: str, *, seconds: float = 5.0) -> bool:
    """Whether the server answers a HEAD request within `seconds`."""
    request = urllib.request.Request(url, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return bool(answer.status < 400)
    except (urllib.error.URLError, OSError):
        return False


def choose_cpu_torch(python: Path, *, pin: str, index: str = CPU_INDEX) -> TorchSource:
    """The CPU wheel: from its official index when that answers, else from where pip is set up to look.

    Costs up to 5 s without a network, then a few for pip.
    """
    cpu_pin = f"{pin}+cpu"
    from_file = ("-c", str(CONSTRAINTS))
    if is_reachable(f"{index}/torch/"):
        arguments = (*from_file, "--extra-index-url", index)
        return TorchSource(pin=cpu_pin, pip_arguments=arguments, words=f"{cpu_pin} from {index}")
    dry = [str(python), "-m", "pip", "install", "--dry-run", "--no-deps", "--quiet", cpu_pin]
    if subprocess.run(dry, capture_output=True, check=False).returncode == 0:
        return TorchSource(pin=cpu_pin, pip_arguments=from_file, words=f"{cpu_pin}, as pip is set up")
    return TorchSource(
        pin=pin,
        pip_arguments=from_file,
        words=f"{pin} from pip's default index ({index} does not answer): with CUDA libraries it is some GB",
    )


def ask_torch(python: Path) -> str | None:
    """Version of the torch that an interpreter sees, without importing it; None when it has none."""
    answer = subprocess.run([str(python), "-I", "-c", ASK_TORCH], capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None


def choose_own_torch(python: Path) -> TorchSource:
    """The torch that `python` has, pinned so that it stays; `EnvironmentSetupError` when it will not do."""
    version = ask_torch(python)
    if version is None:
        raise EnvironmentSetupError(
            f"TORCH=own, but {python} has no torch; expected torch >= 2.11 in it. "
            "Name the Python that has it (make PYTHON=/path/to/python TORCH=own ...) or leave TORCH=own out."
        )
    if tuple(int(part) for part in version.split("+")[0].split(".")[:2]) < OLDEST_TORCH:
        raise EnvironmentSetupError(
            f"TORCH=own, but {python} has torch {version}; expected torch >= 2.11. "
            "Update it there, or leave TORCH=own out."
        )
    return TorchSource(pin=f"torch=={version}", pip_arguments=(), words=f"the torch {version} of {python}")


def lend_torch(venv: Path, *, site_packages: Path) -> None:
    """Make the environment see the torch of the Python that runs this."""
    choose_own_torch(Path(sys.executable))
    try:
        own_torch.lend(venv / "own-torch", site_packages=site_packages)
    except own_torch.OwnTorchError as error:
        raise EnvironmentSetupError(str(error)) from error


def refuse_to_replace(python: Path, *, pin: str) -> None:
    """Raise when an environment that a person made has another torch than the pinned CPU wheel."""
    seen = ask_torch(python)
    if seen is not None and seen not in (pinned := pin.removeprefix("torch=="), f"{pinned}+cpu"):
        raise EnvironmentSetupError(
            f"{python} has torch {seen}, which TORCH=cpu would replace by {pinned}+cpu. "
            "Keep it with TORCH=own, or name another folder with VENV=."
        )


def make_venv(venv: Path, *, torch: str) -> Path:
    """Make the environment when it is not there; returns its interpreter.

    With `torch` "own" it sees the torch of the Python that runs this, and none of its other packages.
    """
    python = venv / "bin" / "python"
    mark = venv / "kit-torch.txt"
    if python.exists() and not mark.exists():
        if torch == "cpu":
            refuse_to_replace(python, pin=read_pin())
        return python
    if python.exists():
        made_with = mark.read_text().strip()
        if made_with != torch:
            raise EnvironmentSetupError(
                f"{venv} was made with TORCH={made_with}, now TORCH={torch} is asked for. "
                f"Run make clean first, or keep both: make VENV={venv}-{torch} TORCH={torch} ..."
            )
        return python
    if preflight.report(list(preflight.check_venv())):
        raise EnvironmentSetupError(f"cannot make {venv}")
    say(f"making {venv} with Python {sys.version.split()[0]}")
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    if torch == "own":
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        lend_torch(venv, site_packages=venv / "lib" / version / "site-packages")
    mark.write_text(torch + "\n")
    return python


def install(python: Path, *, source: TorchSource, extras: Sequence[str], log: Path) -> None:
    """Install this repository in editable form, saying every ten seconds how far it is."""
    constraint = log.with_name("kit-constraints.txt")
    constraint.write_text(source.pin + "\n")
    target = f".[{','.join(extras)}]" if extras else "."
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off",
               *source.pip_arguments, "-c", str(constraint), "-e", target]  # fmt: skip
    begun = said = time.monotonic()
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as pip:
        while pip.poll() is None:
            time.sleep(0.2)
            if time.monotonic() - said > SAY_EVERY_SECONDS:
                said = time.monotonic()
                say(f"installing, {said - begun:.0f} s: {last_step(log)}")
    if pip.returncode:
        tail = "\n".join(log.read_text().splitlines()[-15:])
        raise EnvironmentSetupError(f"{tail}\npip ended with status {pip.returncode}; its words are in {log}")
    say(f"installed in {time.monotonic() - begun:.0f} s")


def last_step(log: Path) -> str:
    """The last step that pip named (it warns and tidies on other lines), cut to the width of a line."""
    lines = log.read_text(errors="replace").splitlines()
    steps = (line.strip() for line in reversed(lines) if line.lstrip().startswith(PIP_STEPS))
    line = next(steps, "pip is starting")
    return line if len(line) <= 80 else line[:77] + "..."


def say(words: str) -> None:
    """Tell the person at the terminal."""
    print(f"kit: {words}", flush=True)  # noqa: T201 - a command's own output


def set_up(venv: Path, *, torch: str, extras: Sequence[str]) -> None:
    """Make the environment, install the kit in it and check which torch came."""
    if preflight.report([*preflight.check_machine(), *preflight.check_inductor()]):
        raise EnvironmentSetupError("this machine cannot run the kit yet")
    python = make_venv(venv, torch=torch)
    source = choose_own_torch(python) if torch == "own" else choose_cpu_torch(python, pin=read_pin())
    say(f"installing the kit and {source.words}")
    install(python, source=source, extras=extras, log=venv / "install.log")
    seen, expected = ask_torch(python), source.pin.removeprefix("torch==")
    if seen is None or seen.split("+")[0] != expected.split("+")[0]:
        raise EnvironmentSetupError(f"{venv} has torch {seen}, expected {expected}; run make clean")


def main(arguments: Sequence[str]) -> int:
    """Read the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kit.environment", description=__doc__)
    parser.add_argument("--venv", type=Path, default=Path(".venv"))
    parser.add_argument("--torch", choices=("cpu", "own"), default="cpu")
    parser.add_argument("--extra", default="", help="extras of pyproject.toml, with commas")
    chosen = parser.parse_args(arguments)
    try:
        set_up(chosen.venv, torch=chosen.torch, extras=[e for e in chosen.extra.split(",") if e])
    except EnvironmentSetupError as error:
        print(f"kit: {error}", file=sys.stderr)  # noqa: T201 - a command's own output
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
