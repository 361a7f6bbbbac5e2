"""Compiled kernels as Triton leaves them in its cache: PTX, cubin and a JSON of the launch, joined into one record.

Inductor's cache holds Triton's in `<TORCHINDUCTOR_CACHE_DIR>/triton/<device>/`, one folder a compiled kernel. A kernel
that was tuned is there several times; `*.best_config` beside Inductor's code names the one that was kept
(`triton_cache_hash`). What a process writes at the moment is in `tmp.pid_*` and moves or goes: it is passed over.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kit.timeline.cubin import read_cubin
from kit.timeline.error import TraceError
from kit.timeline.ptx import PtxKernel, read_ptx

_MOST_BYTES = 64 << 20  # of one artifact: folders come from other people
_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One compiled kernel. None: its file is not there.

    `registers` and `stack_bytes` (spilled registers, where the PTX declares no local memory) of a thread, from the
    cubin; `shared_bytes` and `warps` of a block, from the JSON; `mix`: instructions in the PTX by kind, the most first.
    """

    name: str
    folder: str
    target: str
    registers: int | None
    stack_bytes: int | None
    shared_bytes: int | None
    warps: int | None
    mix: tuple[tuple[str, int], ...]

    @property
    def instructions(self) -> int:
        """All instructions in the PTX text."""
        return sum(count for _, count in self.mix)

    @property
    def words(self) -> str:
        """The most frequent kinds of instructions in words."""
        shown = ", ".join(f"{count} {kind}" for kind, count in self.mix[:_SHOWN])
        rest = self.instructions - sum(count for _, count in self.mix[:_SHOWN])
        return f"{shown}, {rest} other" if rest else shown


def read_artifacts(folder: str | Path) -> tuple[Artifact, ...]:
    """All compiled kernels under a folder, in order of name. Of a tuned one only the kept, where that is said.

    Raises `TraceError` for a folder without any, and for a file that is damaged.
    """
    folder = Path(folder)
    found = [_read(path) for path in _finished(folder, "*.ptx")]
    if not found:
        raise TraceError(
            f"{folder}: holds no .ptx file; expected Triton's cache (TRITON_CACHE_DIR) or Inductor's "
            "(TORCHINDUCTOR_CACHE_DIR) of a run on an NVIDIA GPU"
        )
    kept = set(_kept(folder))
    ways = Counter(artifact.name for artifact in found)
    chosen = {artifact.name for artifact in found if artifact.folder in kept}
    return tuple(
        sorted(
            (a for a in found if ways[a.name] == 1 or a.name not in chosen or a.folder in kept),
            key=lambda a: (a.name, a.folder),
        )
    )


def _read(path: Path) -> Artifact:
    kernels = read_ptx(_bytes(path).decode("utf-8", errors="replace"), source=str(path))
    ptx: PtxKernel = next((kernel for kernel in kernels if kernel.name == path.stem), kernels[0])
    cubin, launch = path.with_suffix(".cubin"), path.with_suffix(".json")
    assembled = read_cubin(_bytes(cubin), source=str(cubin)) if cubin.exists() else ()
    given = next((kernel for kernel in assembled if kernel.name == ptx.name), None)
    said = _json(launch) if launch.exists() else {}
    return Artifact(
        name=ptx.name, folder=path.parent.name, target=ptx.target,
        registers=given.registers if given else None, stack_bytes=given.stack_bytes if given else None,
        shared_bytes=_whole(said.get("shared")), warps=_whole(said.get("num_warps")), mix=ptx.mix,
    )  # fmt: skip


def _finished(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.rglob(pattern) if not path.parent.name.startswith("tmp.pid_"))


def _kept(folder: Path) -> list[str]:
    return [str(_json(path).get("triton_cache_hash")) for path in _finished(folder, "*.best_config")]


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _json(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(_bytes(path), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}; expected a JSON object as Triton writes it") from error


def _bytes(path: Path) -> bytes:
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise TraceError(f"{path}: {size} bytes, at most {_MOST_BYTES} are read")
    return path.read_bytes()
