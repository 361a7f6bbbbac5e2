"""What this machine lacks, each with the one line that installs it.

Stdlib only and run before anything is installed, because its purpose is to speak before pip or
the C++ compiler fail with their own words. Run it as `python -m kit.preflight run` or `... test`.
"""

import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser")
COMPILERS = ("g++", "clang++")


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """One thing the machine lacks: what was seen, what it is needed for, the line that brings it.

    `stops`: nothing works without it; otherwise only `needed_for` is left out.
    """

    seen: str
    needed_for: str
    install: str
    stops: bool

    def __str__(self) -> str:
        head = "missing" if self.stops else "note"
        return f"{head}: {self.seen}; needed for {self.needed_for}.\n  Install it:  {self.install}"


def find_browser() -> str | None:
    """Path of Debian's chromium, or of KIT_BROWSER; None when there is none."""
    wanted = os.environ.get("KIT_BROWSER")
    names = (wanted,) if wanted else BROWSERS
    return next((path for name in names if (path := shutil.which(name))), None)


def find_compiler() -> str | None:
    """Path of the C++ compiler that Inductor would take (CXX, g++, clang++); None when there is none."""
    wanted = os.environ.get("CXX")
    names = (wanted.split()[0],) if wanted else COMPILERS
    return next((path for name in names if (path := shutil.which(name))), None)


def has_python_headers() -> bool:
    """Whether Python.h is there, which Inductor's C++ code includes."""
    return (Path(sysconfig.get_path("include")) / "Python.h").is_file()


def check_machine() -> Iterator[Missing]:
    """What stops every command: another system than Linux, too old a Python."""
    if platform.system() != "Linux":
        yield Missing(
            seen=f"this system is {platform.system() or 'unknown'}, expected Linux",
            needed_for="starting, aborting and watching ranks",
            install="wsl --install -d Debian   (on Windows; on a Mac use a Linux container or machine)",
            stops=True,
        )
    if sys.version_info < (3, 11):  # noqa: UP036 - this very check is for older ones
        yield Missing(
            seen=f"this is Python {platform.python_version()}, expected 3.11 or newer",
            needed_for="the kit",
            install="apt-get install -y python3 python3-venv   or name another: make PYTHON=python3.12 ...",
            stops=True,
        )


def check_venv() -> Iterator[Missing]:
    """What stops making a virtual environment: Debian ships venv and ensurepip apart from Python."""
    absent = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if absent:
        yield Missing(
            seen=f"{sys.executable} has no module {' and no module '.join(absent)}",
            needed_for="making the virtual environment",
            install="apt-get install -y python3-venv",
            stops=True,
        )


def check_inductor() -> Iterator[Missing]:
    """What Inductor's CPU backend needs; without it only the eager executors work."""
    lacks = []
    if find_compiler() is None:
        lacks.append(f"no C++ compiler ({', '.join(COMPILERS)}; CXX is {os.environ.get('CXX', 'not set')})")
    if not has_python_headers():
        lacks.append(f"no Python.h in {sysconfig.get_path('include')}")
    if lacks:
        yield Missing(
            seen=" and ".join(lacks),
            needed_for="compiling with Inductor (eager execution works without)",
            install="apt-get install -y g++ python3-dev",
            stops=False,
        )


def check_browser() -> Iterator[Missing]:
    """What the browser tests need; with KIT_REQUIRE_BROWSER=1 they may not be left out."""
    if find_browser() is None:
        yield Missing(
            seen=f"no chromium (KIT_BROWSER is {os.environ.get('KIT_BROWSER', 'not set')})",
            needed_for="the browser tests",
            install="apt-get install -y --no-install-recommends chromium",
            stops=os.environ.get("KIT_REQUIRE_BROWSER") == "1",
        )


def report(missing: list[Missing]) -> int:
    """Write each to stderr; returns the exit status, 1 when one of them stops the work."""
    for one in missing:
        print(one, file=sys.stderr)  # noqa: T201 - a command's own output
    return int(any(one.stops for one in missing))


def main(arguments: list[str]) -> int:
    """Check for `run` or `test`; returns the exit status."""
    if arguments not in (["run"], ["test"]):
        print("usage: python -m kit.preflight run|test", file=sys.stderr)  # noqa: T201 - a command's own output
        return 2
    missing = [*check_machine(), *check_inductor()]
    if arguments == ["test"]:
        missing += check_browser()
    return report(missing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
