"""A thread of every rank that answers questions while the main thread works or is stuck.

Questions come through the group's store, on a client of this thread's own: it reaches ranks on other machines too, and
waiting there holds no lock of Python. They are text and so are the answers, because the store asks for no secret.
While a question is awaited the main thread is looked at once a second, to know how long it has been at its line.
"""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from kit._torch import flight, groups
from kit.ranks import inside
from kit.ranks.blocked import Wait, wait_of_main_thread
from kit.ranks.failure import is_users, users_stack
from kit.ranks.guard import Guard
from kit.ranks.spec import Spec
from kit.ranks.stacks import Collective, RankStack, State

_LOOK_SECONDS = timedelta(seconds=1)
_STORE_SECONDS = timedelta(seconds=60)
_LET_RUN_SECONDS = 0.002  # longer than a Python thread waits for the lock that this one holds
_C10D = "torch/distributed/distributed_c10d.py"
_TALKS = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "monitored_barrier")
_LIFE = {"join", "leave"}  # of the guard
_MAKES = ("new_group", "init_process_group", "split_group", "new_subgroups")


class Lookout:
    """Looks at this rank and answers; `start` it when the namespace is there."""

    def __init__(self, spec: Spec, guard: Guard) -> None:
        self._spec = spec
        self._guard = guard
        self._main = threading.main_thread().ident or 0
        self._seen: tuple[object, ...] = ()
        self._seen_at = time.monotonic()
        self._verbs: dict[str, Callable[[str], Any]] = {
            "look": lambda _: self.look(),
            "complete": inside.complete,
            "describe": inside.describe,
            "names": inside.names,
            "dump": lambda epoch: self.dump(int(epoch)),
        }

    def start(self) -> None:
        """Answer from now on."""
        store = groups.connect_store(self._spec.host, self._spec.port, timeout=_STORE_SECONDS)
        threading.Thread(target=self._serve, args=(store,), name="kit-lookout", daemon=True).start()

    def look(self) -> RankStack:
        """What the main thread does now."""
        now = time.monotonic()
        time.sleep(_LET_RUN_SECONDS)
        doing = self._guard.activity
        frame = sys._current_frames().get(self._main) if doing.command is not None else None
        self._note_line(doing.command, frame)
        resident = 0
        with contextlib.suppress(FileNotFoundError):  # as some sandboxes have it
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        recorded = flight.recorded(since_ns=doing.epoch_ns)
        last = next((entry for entry in reversed(recorded) if not entry.group), None)
        state, collective = (State.IDLE, None) if frame is None else self._state_of(frame, recorded)
        frames = users_stack(frame)
        return RankStack(
            rank=self._spec.rank,
            pid=os.getpid(),
            state=state,
            seconds=max(0.0, now - doing.since),
            line_seconds=max(0.0, now - self._seen_at) if frames else 0.0,
            frames=frames,
            collective=collective,
            last=None if last is None else _collective(last),
            bytes_resident=resident,
            bytes_gpu=_bytes_gpu(),
        )

    def dump(self, epoch: int) -> dict[str, Any]:
        """torch's dump of the collectives of one epoch; frames are the user's own, the group of all ranks has members.

        Raises RuntimeError when this process was not in the epoch.
        """
        span = self._guard.span_ns(epoch)
        if span is None:
            raise RuntimeError("this process was started later")
        found = flight.dumped(since_ns=span[0], until_ns=span[1])
        for entry in found["entries"]:
            entry["frames"] = [frame for frame in entry.get("frames", ()) if is_users(frame["filename"])]
        if set(found.get("pg_config", {"": None})) == {""}:  # gloo says nothing of its groups
            members = str(list(range(self._spec.world_size)))
            found["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": members}}
        return found

    def _serve(self, store: Any) -> None:
        number = 1
        name = f"{self._spec.rank}/{os.getpid()}"
        while True:
            asked = f"ask/{name}/{number}"
            try:
                store.wait([asked], _LOOK_SECONDS)
                question, verb, argument = json.loads(store.get(asked))
                store.set(f"told/{name}/{number}", self._answer(question, verb, argument))
            except dist.DistStoreError:  # no question in this second
                doing = self._guard.activity
                if doing.command is not None:
                    self._note_line(doing.command, sys._current_frames().get(self._main))
                continue
            except RuntimeError:  # the store is gone; the guard ends this process
                return
            number += 1

    def _answer(self, question: int, verb: str, argument: str) -> str:
        try:
            value, error = self._verbs[verb](argument), ""
        except Exception as raised:  # looking at the person's objects runs their code
            value, error = None, f"{type(raised).__name__}: {raised}"
        return msgspec.json.encode({"question": question, "value": value, "error": error}).decode()

    def _note_line(self, command: int | None, frame: FrameType | None) -> None:
        """Remember since when the user's innermost frame is at the same instruction, with no collective in between."""
        while frame is not None and not is_users(frame.f_code.co_filename):
            frame = frame.f_back
        begun = groups.collectives_begun() if dist.is_initialized() else {}
        counts = tuple(count for count, _ in begun.values())
        here = (command, id(frame), frame.f_lasti if frame is not None else 0, counts)
        if here != self._seen:
            self._seen, self._seen_at = here, time.monotonic()

    def _state_of(self, frame: FrameType, recorded: list[flight.Entry]) -> tuple[State, Collective | None]:
        """The state, and what it waits in."""
        called = _called(frame)
        if not users_stack(frame):  # a command of the kit's own
            return State.JOINING if _LIFE & set(called) else State.RUNNING, None
        comparing = self._guard.comparing
        if comparing is not None:
            return State.COLLECTIVE, Collective(
                kind=comparing.kind,
                number=comparing.number,
                tensors=comparing.tensors,
                group=comparing.group,
                seconds=time.monotonic() - comparing.since,
                begun=False,
            )
        makes = next((name for name in called if name in _MAKES), None)
        if makes is not None:
            return State.STORE, Collective(kind=makes)
        wait = wait_of_main_thread(self._spec.port)
        pending = next((entry for entry in recorded if not entry.ended), None)
        if pending is not None and (called or wait is Wait.LOCK or self._spec.backend == "nccl") and _is_native(frame):
            return State.COLLECTIVE, _collective(pending)
        talks = next((name for name in called if name in _TALKS), None)
        if talks is not None:
            return State.COLLECTIVE, Collective(kind=talks)
        if wait is Wait.STORE:
            return State.STORE, None
        return State.RUNNING if wait is Wait.RUNNING else State.WAITING, None


def _collective(entry: flight.Entry) -> Collective:
    return Collective(
        kind=entry.kind, number=entry.number, tensors=entry.tensors, group=entry.group, seconds=entry.seconds
    )


def _called(frame: FrameType | None) -> list[str]:
    """The functions of torch's process groups, and the guard's of a group's life, on a stack.

    The one that the user called comes first: `recv` calls `irecv`.
    """
    names: list[str] = []
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file.endswith(_C10D) or (file.endswith("kit/ranks/guard.py") and name in _LIFE):
            names.insert(0, name)
        frame = frame.f_back
    return names


def _is_native(frame: FrameType) -> bool:
    """Whether the innermost Python line is the user's or torch's, so that the wait is not one of Python's own locks."""
    file = frame.f_code.co_filename
    return is_users(file) or "/torch/" in file


def _bytes_gpu() -> int:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch
        return 0
    return int(torch.cuda.memory_allocated(torch.device(inside.rank_device())))
