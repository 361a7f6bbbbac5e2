"""What preflight says about machines that lack something."""

import importlib.util
import platform
import sys
from pathlib import Path

import pytest

from kit import preflight


def test_another_system_than_linux_stops_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    (missing,) = preflight.check_machine()
    assert missing.stops
    assert str(missing).splitlines()[0] == (
        "missing: this system is Windows, expected Linux; needed for starting, aborting and watching ranks."
    )
    assert "wsl --install" in missing.install


def test_too_old_a_python_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    (missing,) = preflight.check_machine()
    assert missing.stops
    assert "expected 3.11 or newer" in missing.seen


def test_a_python_without_ensurepip_names_python3_venv(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ensurepip" else real(name))
    (missing,) = preflight.check_venv()
    assert missing.seen == f"{sys.executable} has no module ensurepip"
    assert missing.install == "apt-get install -y python3-venv"


def test_no_compiler_is_a_note_that_names_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    (missing,) = preflight.check_inductor()
    assert not missing.stops
    assert "no C++ compiler (g++, clang++; CXX is not set)" in missing.seen
    assert missing.install == "apt-get install -y g++ python3-dev"


def test_the_compiler_of_cxx_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "my-cxx"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", f"{compiler} -O1")
    assert preflight.find_compiler() == str(compiler)


@pytest.mark.parametrize(("required", "stops"), [("1", True), ("0", False)])
def test_no_chromium_stops_only_where_it_is_required(
    monkeypatch: pytest.MonkeyPatch, required: str, stops: bool
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("KIT_BROWSER", raising=False)
    monkeypatch.setenv("KIT_REQUIRE_BROWSER", required)
    (missing,) = preflight.check_browser()
    assert missing.stops is stops
    assert missing.install == "apt-get install -y --no-install-recommends chromium"


def test_notes_alone_do_not_stop(capsys: pytest.CaptureFixture[str]) -> None:
    note = preflight.Missing(seen="no x", needed_for="y", install="apt-get install -y x", stops=False)
    assert preflight.report([note]) == 0
    assert capsys.readouterr().err == "note: no x; needed for y.\n  Install it:  apt-get install -y x\n"


def test_one_that_stops_gives_status_one() -> None:
    stop = preflight.Missing(seen="no x", needed_for="y", install="z", stops=True)
    assert preflight.report([stop]) == 1


def test_wrong_arguments_give_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert preflight.main(["all"]) == 2
    assert "run|test" in capsys.readouterr().err
