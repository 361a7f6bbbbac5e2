"""Holds the rules of the house against the source as it is: who imports whom, how long, how quick.

Imports are read from the syntax tree, those inside functions too: an arrow is an arrow wherever it is
written. Imports under `TYPE_CHECKING` count as well, since a type is knowledge.
"""

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for top in ("kit", "widgets") for path in (ROOT / top).rglob("*.py"))
ROOMS = ("_torch", "ranks", "graph", "step", "partition", "timeline", "memory", "tuning")

# Room -> rooms it may know; verbs, display and the archive's table tie rooms together and stand above.
MAY_KNOW = {
    "_torch": (),
    "ranks": ("_torch",),
    "graph": ("_torch",),
    "timeline": ("_torch",),
    "memory": ("_torch", "graph"),
    "step": ("_torch", "graph"),
    "partition": ("_torch", "graph"),
    "tuning": ("_torch", "step", "memory"),
}
# Modules of the kit itself that every room may use, because they know no room.
GROUND = ("kit.progress", "kit.colours", "kit.tables", "kit.archive")
KNOW_ALL = ("kit", "kit.verbs", "kit.step_kernels", "kit.step_on_ranks", "kit.display")
JUPYTER = ("IPython", "ipywidgets", "anywidget", "ipykernel")
COMMANDS = ("kit.preflight", "kit.environment", "kit.run_notebook")  # run as `python -m`; they may print
TOP_LEVEL = {
    "pyproject.toml", "kit", "widgets", "notebooks", "tests", "binder",
    "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile",
    "constraints-cpu.txt", ".ci", ".gitignore",
}  # fmt: skip
FILE_LINES, FUNCTION_LINES = 350, 60
IMPORT_SECONDS = 0.2


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file names in an import, absolute, with its line.

    `from kit.graph import record` gives both `kit.graph` and `kit.graph.record`: the syntax alone
    does not say which of the two it is.
    """
    package = name_of(path).split(".") if path.name == "__init__.py" else name_of(path).split(".")[:-1]
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module, node.lineno
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)


def room_of(module: str) -> str | None:
    """The room of the kit that a module name lies in."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "kit" and parts[1] in ROOMS else None


def is_inside(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def describe(found: list[tuple[Path, int, str]]) -> str:
    return "\n".join(f"{path.relative_to(ROOT)}:{line}: {words}" for path, line, words in found)


def kit_sources() -> list[Path]:
    return [path for path in SOURCES if name_of(path).split(".")[0] == "kit"]


def test_imports_are_read_also_inside_functions_and_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    file = tmp_path / "kit" / "graph" / "draw.py"
    file.parent.mkdir(parents=True)
    file.write_text("from . import record\nfrom ..step import plan\ndef f():\n    import torch._C\n")
    assert list(imports_of(file)) == [
        ("kit.graph", 1), ("kit.graph.record", 1), ("kit.step", 2), ("kit.step.plan", 2), ("torch._C", 4),
    ]  # fmt: skip


def test_every_room_of_the_kit_has_its_rule() -> None:
    rooms = {path.name for path in (ROOT / "kit").iterdir() if (path / "__init__.py").exists()}
    assert rooms <= set(MAY_KNOW), f"rooms without a rule here and in design.md: {rooms - set(MAY_KNOW)}"


def test_kit_knows_no_widgets() -> None:
    found = [(p, line, m) for p in kit_sources() for m, line in imports_of(p) if is_inside(m, ("widgets",))]
    assert not found, describe(found)


def test_only_the_magics_know_jupyter() -> None:
    found = [
        (path, line, module)
        for path in kit_sources()
        if name_of(path) != "kit.ranks.magics"
        for module, line in imports_of(path)
        if is_inside(module, JUPYTER)
    ]
    assert not found, describe(found)


def test_record_modules_know_nothing_of_the_kit_nor_torch() -> None:
    found = [
        (path, line, module)
        for path in kit_sources()
        if path.name == "record.py"
        for module, line in imports_of(path)
        if is_inside(module, ("kit", "torch"))
    ]
    assert not found, describe(found)


def test_rooms_know_only_the_rooms_below_them() -> None:
    found = []
    for path in kit_sources():
        room = room_of(name_of(path))
        if room is None:
            continue
        for module, line in imports_of(path):
            other = room_of(module)
            if other not in (None, room, *MAY_KNOW[room]):
                found.append((path, line, f"{room} knows {other} ({module}); it may know {MAY_KNOW[room]}"))
            elif other is None and is_inside(module, ("kit",)) and module != "kit" and not is_inside(module, GROUND):
                found.append((path, line, f"{room} knows {module}, which stands above the rooms"))
    assert not found, describe(found)


def test_modules_beside_the_rooms_know_no_room() -> None:
    found = [
        (path, line, f"{name_of(path)} knows {module}; only {', '.join(KNOW_ALL)} know rooms")
        for path in kit_sources()
        if room_of(name_of(path)) is None and name_of(path) not in KNOW_ALL
        for module, line in imports_of(path)
        if room_of(module) is not None
    ]
    assert not found, describe(found)


def test_rooms_have_no_circles() -> None:
    knows: dict[str, set[str]] = {room: set() for room in ROOMS}
    for path in kit_sources():
        room = room_of(name_of(path))
        others = {room_of(module) for module, _ in imports_of(path)} - {room, None}
        if room is not None:
            knows[room] |= {other for other in others if other is not None}
    while knows:
        free = [room for room, others in knows.items() if not others & set(knows)]
        assert free, f"a circle among {knows}"
        for room in free:
            del knows[room]


def test_private_torch_names_are_touched_only_in_their_room() -> None:
    found = []
    for path in SOURCES:
        if room_of(name_of(path)) == "_torch":
            continue
        found += [(path, line, m) for m, line in imports_of(path) if is_private_torch(m)]
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Attribute) and is_private_torch(ast.unparse(node)):
                found.append((path, node.lineno, ast.unparse(node)))
    assert not found, describe(found)


def is_private_torch(dotted: str) -> bool:
    """Whether a dotted name runs from torch through a name with one leading underscore."""
    parts = dotted.split(".")
    return parts[0] == "torch" and any(p.startswith("_") and not p.startswith("__") for p in parts[1:])


def test_the_archive_names_every_record_module_that_exists() -> None:
    from kit.archive import RECORDS

    known = set(RECORDS.values())
    found = {name_of(path) for path in kit_sources() if path.name == "record.py"}
    assert found <= known, f"records that cannot be saved: {found - known}; name them in kit.archive.RECORDS"


def test_kit_prints_nothing() -> None:
    found = [
        (path, node.lineno, "print")
        for path in SOURCES
        if name_of(path) not in COMMANDS
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not found, describe(found)


def test_every_module_says_what_it_is() -> None:
    found = [(path, 1, "no module docstring") for path in SOURCES if not ast.get_docstring(parse(path))]
    assert not found, describe(found)


def test_files_and_functions_are_short() -> None:
    found = []
    for path in SOURCES:
        lines = len(path.read_text().splitlines())
        if lines > FILE_LINES:
            found.append((path, lines, f"{lines} lines, at most {FILE_LINES}"))
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES:
                    found.append((path, node.lineno, f"{node.name}: {length} lines, at most {FUNCTION_LINES}"))
    assert not found, describe(found)


def test_no_file_is_named_for_having_no_concept() -> None:
    shameful = {"utils", "util", "helpers", "common", "misc", "_utils", "_util"}
    found = [str(path.relative_to(ROOT)) for path in SOURCES if path.stem in shameful]
    assert not found


def test_the_top_level_is_fixed() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    names = {line.split("/")[0] for line in listed.stdout.splitlines()}
    assert names <= TOP_LEVEL, f"not of the fixed top level: {names - TOP_LEVEL}"


def test_both_packages_are_typed() -> None:
    assert (ROOT / "kit" / "py.typed").exists()
    assert (ROOT / "widgets" / "py.typed").exists()


def test_nothing_names_this_machine() -> None:
    files = [
        *SOURCES,
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "notebooks").glob("*.ipynb"),
        *ROOT.glob("*.md"),
    ]
    foreign = ("/" + "work/", "/" + "root/")
    found = [
        (path, number, line.strip())
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if any(start in line for start in foreign)
    ]
    assert not found, describe(found)


def test_the_constraint_lies_in_the_range_of_the_project() -> None:
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    oldest = next(need.split(">=")[1] for need in needs if need.startswith("torch"))
    pinned = (ROOT / "constraints-cpu.txt").read_text().split("==")[1].strip()
    assert tuple(map(int, pinned.split("."))) >= tuple(map(int, oldest.split(".")))


def test_import_kit_is_quick_and_brings_neither_torch_nor_pictures() -> None:
    heavy = (
        "torch",
        "numpy",
        "pandas",
        "matplotlib",
        "ipywidgets",
        "IPython",
        "widgets",
        "papermill",
        "rich",
    )
    code = (
        "import sys, time, json; begun = time.process_time(); import kit; "
        f"print(json.dumps([time.process_time() - begun, [m for m in {heavy!r} if m in sys.modules]]))"
    )
    best, loaded = min(json.loads(run_python(code)) for _ in range(3))
    print(f"import kit: {best:.3f} s of CPU")
    assert loaded == []
    assert best < IMPORT_SECONDS


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_no_module_hides_a_public_name() -> None:
    import kit

    modules = {path.stem for path in (ROOT / "kit").glob("*.py")} | {path.name for path in (ROOT / "kit").iterdir()}
    assert not modules & set(kit.__all__)
