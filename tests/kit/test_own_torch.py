"""What of another Python is lent: the named distribution, what it needs, nothing else."""

import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from kit.own_torch import OwnTorchError, find_entries, find_needed, lend


def add_package(site: Path, name: str, *, needs: tuple[str, ...] = (), listed: bool = True) -> None:
    """An installed package of one module, as pip leaves it."""
    (site / f"{name}.py").write_text("")
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {need}" for need in needs)]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    if listed:
        (info / "RECORD").write_text(f"{name}.py,,\n{info.name}/METADATA,,\n../../bin/{name},,\n__pycache__/x.pyc,,\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that this process finds first."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return folder


def test_what_is_needed_is_followed_without_extras_and_absent_ones(site: Path) -> None:
    add_package(site, "first", needs=("Second_pkg>=1; python_version > '3'", "third; extra == 'x'", "absent==2"))
    add_package(site, "second_pkg", needs=("first",))
    add_package(site, "third")
    assert [package.name for package in find_needed("first")] == ["first", "second_pkg"]


def test_entries_are_those_in_site_packages(site: Path) -> None:
    add_package(site, "first")
    assert find_entries(distribution("first")) == [site / "first-1.0.dist-info", site / "first.py"]


def test_a_package_without_a_list_of_files_is_refused_with_another_way(site: Path) -> None:
    add_package(site, "torch", listed=False)
    with pytest.raises(
        OwnTorchError, match=r"torch 1\.0 has no list of its files.*Install the kit where it is: make VENV="
    ):
        find_entries(distribution("torch"))


def test_lending_links_the_packages_and_points_site_packages_at_them(site: Path, tmp_path: Path) -> None:
    add_package(site, "torch", needs=("second",))
    add_package(site, "second")
    add_package(site, "other")
    lend(tmp_path / "lent", site_packages=tmp_path)
    assert sorted(path.name for path in (tmp_path / "lent").iterdir()) == [
        "second-1.0.dist-info", "second.py", "torch-1.0.dist-info", "torch.py",
    ]  # fmt: skip
    assert (tmp_path / "kit-own-torch.pth").read_text() == f"{tmp_path / 'lent'}\n"
