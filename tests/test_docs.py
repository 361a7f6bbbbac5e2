"""The documents against the code: examples run, names exist, links lead somewhere, commands are real."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kit
import widgets

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
FENCED = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://|#)([^)]+)\)")
COMMAND = re.compile(r"\bmake ([a-z]+)")
EXAMPLE_SECONDS = 120

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)


def examples() -> list[str]:
    return [block for document in DOCUMENTS for block in FENCED.findall(document.read_text())]


@every_document
def test_links_lead_to_files(document: Path) -> None:
    links = LINK.findall(document.read_text())
    assert [link for link in links if not (ROOT / link.split("#")[0]).exists()] == []


@every_document
def test_files_named_in_code_marks_exist(document: Path) -> None:
    named = re.findall(
        r"`((?:kit|widgets|tests|notebooks|binder)/[\w./]*|[\w-]+\.(?:txt|md|toml))`", document.read_text()
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


@every_document
def test_targets_of_make_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(COMMAND.findall(re.sub(r"[^`\n]*\bmake (it|them|sure)\b", "", document.read_text()))) <= targets


@every_document
def test_public_names_exist(document: Path) -> None:
    text = document.read_text()
    modules = {path.stem for path in (ROOT / "kit").iterdir()}
    named = set(re.findall(r"\bkit\.([a-zA-Z_]\w*)", text))
    assert named - set(kit.__all__) - modules == set()
    assert set(re.findall(r"\bwidgets\.([a-zA-Z_]\w*)", text)) <= set(widgets.__all__)


def test_the_readme_names_every_verb() -> None:
    text = (ROOT / "README.md").read_text()
    assert [name for name in kit.__all__ if f"kit.{name}" not in text] == []


def test_examples_are_python() -> None:
    assert examples()
    for block in examples():
        ast.parse(block)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(examples())))
def test_examples_run_as_scripts(number: int, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(examples()[number])
    ran = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=EXAMPLE_SECONDS,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    first, last = re.findall(r"loss ([\d.]+) -> ([\d.]+)", ran.stdout)[0]
    assert float(last) < float(first) / 2


def test_contributing_fits_on_one_screen() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 40


def test_the_readme_says_how_to_get_the_cpu_wheel() -> None:
    assert "https://download.pytorch.org/whl/cpu" in (ROOT / "README.md").read_text()
