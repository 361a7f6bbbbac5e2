"""The folder of a saved step: whole or recognised as half-written, whatever dies when.

A save writes into a folder beside the target (`NAME.writing`) and takes the target's place only when
every rank's part and the metadata, which torch.distributed.checkpoint writes last, are there. What was
saved before steps aside as `NAME.previous` and goes only after that, so at any moment one whole step is
on disk. All functions are collective: rank 0 changes the folders, all ranks learn what came of it.
"""

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

METADATA = ".metadata"
_TOKEN = "kit_save"


class SavedStepError(RuntimeError):
    """A saved step that is not there, not whole, not of this step, or could not be written."""


def begin_writing(path: str | Path, group: dist.ProcessGroup) -> Path:
    """Make the empty folder to write into and check that all ranks see it.

    Raises `SavedStepError` when the target is something else than a saved step, or ranks do not share the disk.
    """
    target = _absolute(path)
    fresh = _beside(target, "writing")

    def make() -> str:
        if target.exists() and not is_whole(target) and (not target.is_dir() or any(target.iterdir())):
            raise SavedStepError(
                f"{target} exists and is no whole saved step, so it is not replaced; choose another path or remove it"
            )
        if fresh.exists():
            shutil.rmtree(fresh)
        fresh.mkdir(parents=True)
        token = secrets.token_hex(8)
        (fresh / _TOKEN).write_text(token)
        return token

    token = _on_rank_0(make, group)
    seen = fresh / _TOKEN
    together(
        ""
        if seen.exists() and seen.read_text() == token
        else f"{fresh}, made by rank 0, is not there; all ranks must see one file system: save to a shared path",
        group,
    )
    return fresh


def finish_writing(path: str | Path, group: dist.ProcessGroup) -> Path:
    """Put what was written in the place of the target, which exists from now on; returns the target."""
    target = _absolute(path)
    fresh, previous = _beside(target, "writing"), _beside(target, "previous")

    def swap() -> str:
        (fresh / _TOKEN).unlink()
        if is_whole(target):
            if previous.exists():
                shutil.rmtree(previous)
            target.rename(previous)
        elif target.exists():  # an empty folder; what is beside it may be the last good one
            target.rmdir()
        fresh.rename(target)
        _sync(target.parent)
        if previous.exists():
            shutil.rmtree(previous)
        return ""

    _on_rank_0(swap, group)
    return target


def whole_folder(path: str | Path, group: dist.ProcessGroup) -> Path:
    """The folder to read: the target, or the previous one when a save died between the two renames.

    Raises `SavedStepError` that names what is there instead.
    """
    target = _absolute(path)

    def choose() -> str:
        for folder in (target, _beside(target, "previous")):
            if is_whole(folder):
                return folder.name
            if folder.exists() and folder == target:
                break
        raise SavedStepError(_absence(target))

    folder = target.with_name(_on_rank_0(choose, group))
    together(
        "" if is_whole(folder) else f"{folder}, which rank 0 reads, is not there; load from a shared path",
        group,
    )
    return folder


def is_whole(folder: Path) -> bool:
    """Whether a save into the folder came to its end."""
    return (folder / METADATA).is_file()


def require_files(folder: Path, ends: dict[str, int], group: dist.ProcessGroup) -> None:
    """Raise `SavedStepError` when a file that the metadata names is missing or shorter than it must be.

    `ends`: for each file name the bytes it must hold at least.
    """

    def check() -> str:
        for name, end in sorted(ends.items()):
            file = folder / name
            if not file.is_file():
                raise SavedStepError(f"{folder} lost its file {name}; load another saved step")
            if file.stat().st_size < end:
                raise SavedStepError(
                    f"{file} holds {file.stat().st_size} bytes, expected at least {end}: it was cut short; load "
                    "another saved step"
                )
        return ""

    _on_rank_0(check, group)


def together(problem: str, group: dist.ProcessGroup) -> None:
    """Raise `SavedStepError` on every rank when one has a problem, so that none waits for it."""
    problems = [""] * dist.get_world_size(group)
    dist.all_gather_object(problems, problem, group=group)
    found = {text: rank for rank, text in reversed(list(enumerate(problems))) if text}
    if not found:
        return
    text, rank = next(reversed(found.items()))
    raise SavedStepError(text if all(problems) else f"rank {rank}: {text}")


def _on_rank_0(action: Callable[[], str], group: dist.ProcessGroup) -> str:
    answer = ["", ""]
    if dist.get_rank(group) == 0:
        try:
            answer[0] = action()
        except (OSError, SavedStepError) as error:
            answer[1] = str(error)
    dist.broadcast_object_list(answer, group=group, group_src=0)
    if answer[1]:
        raise SavedStepError(answer[1])
    return answer[0]


def _absence(target: Path) -> str:
    writing = _beside(target, "writing")
    if target.is_dir():
        return (
            f"{target} is no whole saved step: it has no {METADATA}, which is written last. A save into it was "
            "stopped, or it is another kind of folder"
        )
    if target.exists():
        return f"{target} is a file, expected the folder that step.save made"
    if writing.exists():
        return (
            f"{target} does not exist; {writing.name} beside it was left by a save that was stopped and is not whole. "
            "Nothing was saved to this path before"
        )
    return f"{target} does not exist; expected the folder that step.save made"


def _absolute(path: str | Path) -> Path:
    return Path(path).expanduser().resolve()


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(f"{target.name}.{suffix}")


def _sync(folder: Path) -> None:
    """Make renames in a folder durable."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
