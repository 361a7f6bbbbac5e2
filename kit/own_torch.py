"""Lend a virtual environment the torch of another Python, and nothing else of it.

`--system-site-packages` would lend everything: then JupyterLab or nbconvert of that Python is found, but
not their data files, which lie under its prefix. So torch and what torch needs are linked, with
their metadata, into a folder that the environment looks into last; pip sees them as installed.
"""

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path


class OwnTorchError(RuntimeError):
    """The torch of this Python cannot be lent."""


def find_needed(name: str = "torch") -> list[Distribution]:
    """The distribution and all that it needs, as far as this Python has them; the named one first."""
    found: dict[str, Distribution] = {}
    waiting = [name]
    while waiting:
        wanted = waiting.pop()
        key = re.sub(r"[-_.]+", "-", wanted).lower()
        if key in found:
            continue
        try:
            found[key] = distribution(wanted)
        except PackageNotFoundError:
            continue  # of another platform or an extra
        for line in found[key].requires or ():
            named = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line)
            if named is not None and "extra ==" not in line:
                waiting.append(named.group())
    return list(found.values())


def find_entries(package: Distribution) -> list[Path]:
    """What a distribution put into site-packages: folders, modules and its metadata."""
    if package.files is None:
        raise OwnTorchError(
            f"{package.name} {package.version} has no list of its files, so it cannot be lent to another "
            "environment. Install the kit where it is: make VENV=/the/environment/with/torch TORCH=own ..."
        )
    tops = {file.parts[0] for file in package.files} - {"..", "/", "__pycache__"}
    return sorted(Path(str(package.locate_file(top))) for top in tops)


def lend(folder: Path, *, site_packages: Path) -> None:
    """Link torch of this Python and what it needs into `folder`, and make `site_packages` look there.

    Raises `OwnTorchError` when this Python has no torch, or one that cannot be lent.
    """
    needed = find_needed()
    if not needed:
        raise OwnTorchError("this Python has no torch")
    folder.mkdir(parents=True, exist_ok=True)
    for package in needed:
        for entry in find_entries(package):
            link = folder / entry.name
            if not link.exists():
                link.symlink_to(entry.resolve())
    (site_packages / "kit-own-torch.pth").write_text(f"{folder.resolve()}\n")
