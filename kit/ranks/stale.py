"""Name what a person still holds of a process group that is gone.

After an abort ranks are in a new group. Plain tensors live on; a group, a mesh or a wrapped module of
before does not, and torch says so as a bare `KeyError` or a lost connection. When a line fails, the
names on it are looked at, and what is stale is named with the call that builds it again.
"""

import re
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from kit._torch import groups
from kit.ranks.failure import frame_at, is_users

_PARAMETERS_LOOKED_AT = 4
_NAMES = re.compile(r"[A-Za-z_]\w*\b(?!\s*=[^=])")  # names that are read; `group=` names an argument


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """A name on the failing line, what it holds, and the call that makes it anew."""

    name: str
    kind: str
    call: str

    def __str__(self) -> str:
        return (
            f"{self.name} is a {self.kind} of a process group that is gone (ranks were joined anew after an abort); "
            f"make it again with {self.call}"
        )


def stale_of(trace: TracebackType | None) -> Stale | None:
    """The first stale object named on a line of the person's in a traceback, innermost line first; None without."""
    frames: list[tuple[FrameType, int]] = []
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    for frame, line in reversed(frames):
        file = frame.f_code.co_filename
        if is_users(file):
            for name in _NAMES.findall(frame_at(file, line, "").code):
                found = _stale(name, frame.f_locals.get(name, frame.f_globals.get(name)))
                if found is not None:
                    return found
    return None


def _stale(name: str, value: Any) -> Stale | None:
    if isinstance(value, dist.ProcessGroup):
        return None if groups.is_live(value) else Stale(name=name, kind="group", call="dist.new_group(...)")
    if isinstance(value, DeviceMesh):
        return None if _is_live_mesh(value) else Stale(name=name, kind="mesh", call="init_device_mesh(...)")
    if isinstance(value, nn.Module):
        own = getattr(value, "process_group", None)
        if isinstance(own, dist.ProcessGroup) and not groups.is_live(own):
            kind = type(value).__name__
            return Stale(name=name, kind=kind, call=f"{kind}({name}.module)")
        for _, parameter in zip(range(_PARAMETERS_LOOKED_AT), value.parameters(), strict=False):
            mesh = getattr(parameter, "device_mesh", None)
            if isinstance(mesh, DeviceMesh) and not _is_live_mesh(mesh):
                call = "the model's own code and fully_shard(...), or compile its step again with kit.compile_step"
                return Stale(name=name, kind="module with shards", call=call)
    return None


def _is_live_mesh(mesh: DeviceMesh) -> bool:
    try:
        return all(groups.is_live(group) for group in mesh.get_all_groups())
    except (KeyError, RuntimeError, ValueError):  # a group that torch no longer knows by its name
        return False
