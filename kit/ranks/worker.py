"""The main loop of a rank: take a command, run it, answer.

The main thread runs user code and nothing else may raise in it: KeyboardInterrupt is raised by the signal handler
only while user code runs, so a late signal never hits the loop or the next cell.
"""

import contextlib
import faulthandler
import os
import signal
import stat
import sys
import threading
import traceback
import types
from dataclasses import replace
from typing import Any, NoReturn

import torch

from kit import progress
from kit._torch import gloo_gathers, groups  # noqa: F401  # the first for what a person trains, FSDP2 say
from kit.ranks import inside, wire
from kit.ranks.channels import await_delivery
from kit.ranks.errors import Failure
from kit.ranks.failure import failure_of
from kit.ranks.functions import KnownFunctions
from kit.ranks.guard import Guard
from kit.ranks.link import Frames, Link, packed_small
from kit.ranks.lookout import Lookout
from kit.ranks.messages import Answer, Command, Counts, Header, Kind, pack, unpack
from kit.ranks.pool import Pool
from kit.ranks.remote import RemoteRepr
from kit.ranks.spec import Spec
from kit.ranks.stale import stale_of


class Worker:
    """One rank: its guard, its namespace and the connection to the controller."""

    def __init__(self, spec: Spec, connection: Link) -> None:
        self._spec = spec
        self._connection = connection
        self._functions = KnownFunctions()
        self._pool = Pool()
        self._streams_far = [fd for fd in (1, 2) if stat.S_ISSOCK(os.fstat(fd).st_mode)]
        self._sending = threading.Lock()
        self._in_user_code = False
        signal.signal(signal.SIGINT, self._on_sigint)
        torch.set_num_threads(spec.threads)
        device = "cpu" if spec.device == "cpu" else _own_gpu(spec)
        self._guard = Guard(spec)
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        inside.enter(rank=spec.rank, world_size=spec.world_size, device=device, namespace=main.__dict__)
        progress.subscribe(self._send_event)
        Lookout(spec, self._guard).start()

    def serve(self) -> NoReturn:
        """Answer commands until told to close or until the controller is gone."""
        try:
            while True:
                header, value = unpack(self._connection.receive())
                if not isinstance(header, Command) or header.kind is Kind.CLOSE:
                    break
                self._answer(header, value)
        except (EOFError, OSError):  # the controller is gone
            pass
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        finally:
            # Nothing may keep an orphan alive: not a broken output pipe, not a thread, not an exit handler.
            os._exit(0)

    def _answer(self, command: Command, value: Frames) -> None:
        result, failure = self._run(command, value)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the person's code may have put anything there, or closed it
                stream.flush()
        for fd in self._streams_far:
            await_delivery(fd)
        aborted = self._guard.abort_of(command.epoch)
        if aborted is not None and failure is None and command.kind is Kind.CALL:
            # On NCCL a stuck call returns normally after an abort: its value must never be used.
            cause, line = aborted
            failure = Failure(
                rank=self._spec.rank, type="Aborted", message=cause, frames=(line,) if line else (), folded=True
            )
        frames: Frames = []
        if failure is None:
            frames, failure = self._pack(result)
        answer = Answer(number=command.number, failure=failure, collectives=_collectives(), edited=_edited(command))
        self._send(answer, frames)

    def _send(self, header: Header, value: Frames | None = None) -> None:
        frames = pack(header, value)
        small = packed_small(frames)
        with self._sending:
            if small is not None:
                self._connection.write(small)
            else:
                self._connection.send(self._pool.placed(frames) if self._connection.is_local else frames)

    def _run(self, command: Command, value: Frames) -> tuple[Any, Failure | None]:
        try:
            self._guard.begin(command.number, command.epoch)
            try:
                # The epoch may have ended before this rank began: then the watchdog saw nothing to stop.
                if command.kind is Kind.CALL and self._guard.abort_of(command.epoch) is not None:
                    return None, None
                try:
                    self._in_user_code = True
                    return self._do(command, value), None
                finally:
                    self._in_user_code = False
            finally:
                self._guard.end()
        except BaseException as error:
            self._in_user_code = False  # the signal may have come just before it was cleared above
            folded = self._guard.abort_of(command.epoch) is not None or groups.is_peer_lost(error)
            failure = failure_of(error, self._spec.rank, folded=folded)
            gone = stale_of(error.__traceback__) if self._guard.abort_of(command.epoch) is None else None
            if gone is not None and isinstance(error, Exception):
                said = f"{gone} ({failure.type}: {failure.first_line.partition(': ')[2][:120]})"
                failure = replace(failure, type="StaleGroupError", message=said, folded=False)
            return None, failure
        finally:
            if command.forget:
                inside.forget(command.forget)

    def _do(self, command: Command, value: Frames) -> Any:
        if command.kind is Kind.JOIN:
            self._guard.join(command.epoch)
            return None
        if command.kind is Kind.LEAVE:
            self._guard.leave(command.epoch)
            return None
        if command.function < 0:
            function, args = wire.loads(value)
        else:
            if command.packed:
                self._functions.learn(command.function, command.packed)
            function, args = self._functions.of(command.function), wire.loads(value)
        return function(*args)

    def _pack(self, result: Any) -> tuple[Frames, Failure | None]:
        """The frames of a result, or the failure that it cannot be sent."""
        cell = isinstance(result, inside.CellValue)
        value = result.value if isinstance(result, inside.CellValue) else result
        try:
            return wire.dumps(value), None
        except Exception as error:  # pickling runs the object's own code
            try:
                if cell:
                    return wire.dumps(RemoteRepr(type=type(value).__name__, text=repr(value))), None
                message = (
                    f"the result, a {type(value).__name__}, cannot be sent to the notebook "
                    f"({type(error).__name__}: {error}). Return plain values or tensors, or keep it on the ranks "
                    "with ranks.hold(...)"
                )
            except Exception as broken:  # so does its repr
                message = f"the value of the cell, a {type(value).__name__}, cannot be shown ({type(broken).__name__})"
            return [], Failure(rank=self._spec.rank, type="ResultError", message=message)

    def _send_event(self, event: progress.Event) -> None:
        # A KeyboardInterrupt in the middle of a message would break the stream. A signal that comes meanwhile is
        # not lost: the watchdog sends another.
        interruptible = self._in_user_code and threading.current_thread() is threading.main_thread()
        if interruptible:
            self._in_user_code = False
        try:
            self._send(event)
        finally:
            if interruptible:
                self._in_user_code = True

    def _on_sigint(self, number: int, frame: types.FrameType | None) -> None:
        if self._in_user_code:
            raise KeyboardInterrupt


def main(spec: Spec, *, control: int, crash: int) -> NoReturn:
    """Be a rank; `control` and `crash` are descriptors that the controller reads at the other end."""
    faulthandler.enable(os.fdopen(crash, "w"), all_threads=True)
    for name, fd in (("stdout", 1), ("stderr", 2)):  # those of the fork server were opened on something else
        stream = os.fdopen(fd, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    connection = Link(control)
    try:
        worker = Worker(spec, connection)
        hello = Answer(number=0)
    except BaseException as error:
        worker, hello = None, Answer(number=0, failure=failure_of(error, spec.rank, folded=False))
    try:
        connection.send(pack(hello, wire.dumps(None)))
        if worker is None:
            connection.receive()  # not before the controller has read why
    except (EOFError, OSError):  # the controller is gone
        worker = None
    finally:
        if worker is None:
            os._exit(1)
    worker.serve()


def _own_gpu(spec: Spec) -> str:
    """Make this rank's own GPU the current one; NCCL wants one for each rank, gloo may share."""
    count = torch.cuda.device_count()
    if count == 0 or (spec.backend == "nccl" and count < spec.local_world_size):
        offer = f" or kit.launch({count}, backend='nccl') for as many ranks as GPUs" if count > 1 else ""
        raise LookupError(
            f"{spec.world_size} ranks on GPUs with {spec.backend}, but this machine shows "
            f"{count} GPU{'' if count == 1 else 's'}; NCCL needs one for each rank. Use kit.launch({spec.world_size}) "
            f"(gloo, on the CPU){offer}."
        )
    index = spec.local_rank % count
    torch.cuda.set_device(index)
    return f"cuda:{index}"


def _edited(command: Command) -> tuple[str, ...]:
    return inside.edited_modules() if command.kind is Kind.CALL else ()


def _collectives() -> Counts:
    return groups.collectives_begun() if torch.distributed.is_initialized() else {}
