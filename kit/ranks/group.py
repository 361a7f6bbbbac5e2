"""`Ranks`: the processes of a group, as a person talks to them.

Everything here is one call of a function on the ranks (`calls.py` makes it) or a question about the group.
"""

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from kit import progress
from kit.ranks import cell, inside, wire
from kit.ranks.calls import Calls
from kit.ranks.errors import RanksError
from kit.ranks.output import Sink
from kit.ranks.remote import Remote
from kit.ranks.state import GroupState

_cells = itertools.count(1)


class Ranks:
    """A group of rank processes with a process group between them; made by `launch`.

    Use it as a context manager or call `close()`. Calls from several threads wait for one another.
    `timeout` (seconds) of a call, or of `launch` for all calls, ends the call with `RankTimeoutError`.
    """

    def __init__(self, state: GroupState, calls: Calls, *, world_size: int, backend: str, device: str) -> None:
        self._state = state
        self._calls = calls
        self._world_size, self._backend, self._device = world_size, backend, device
        self._names = itertools.count(1)
        self._finalizer = weakref.finalize(self, state.close)

    # ---- what is there --------------------------------------------------------------------------------------

    @property
    def world_size(self) -> int:
        """How many ranks the group has."""
        return self._world_size

    @property
    def backend(self) -> str:
        """The backend of the process group, "gloo" or "nccl"."""
        return self._backend

    @property
    def device(self) -> str:
        """The kind of device the ranks use, "cpu" or "cuda"."""
        return self._device

    @property
    def epoch(self) -> int:
        """How often the process group was built anew; it grows by one with every abort."""
        return self._state.epoch

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._state.closed

    @property
    def alive(self) -> tuple[int, ...]:
        """The ranks whose process runs; empty when the group is closed."""
        return () if self.closed else tuple(self._state.living)

    @property
    def pids(self) -> dict[int, int]:
        """Process id of every living rank."""
        return {} if self.closed else {rank: process.pid for rank, process in self._state.living.items()}

    @property
    def ended(self) -> dict[int, int]:
        """Exit code of every dead rank, negative for a signal; empty when the group is closed."""
        if self.closed:
            return {}
        living = self._state.living
        return {r: p.exit_code or 0 for r, p in self._state.processes.items() if r not in living}

    @property
    def output(self) -> Sink:
        """Where lines of the ranks go; `output_to` changes it."""
        return self._state.sink

    def __repr__(self) -> str:
        if self.closed:
            return f"Ranks(closed, {self._world_size} ranks, {self._backend})"
        dead = sorted(self.ended)
        gone = f", dead: {', '.join(map(str, dead))}" if dead else ""
        return f"Ranks({self._world_size} ranks, {self._backend}, {self._device}, epoch {self.epoch}{gone})"

    def __getitem__(self, name: str) -> Remote:
        """A reference to the object that goes by this name on the ranks."""
        return Remote(group=self, name=name)

    # ---- what it does ---------------------------------------------------------------------------------------

    def run(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> list[Any]:
        """`function(*args)` on every rank; the results in the order of the ranks.

        Raises `RankError` when it fails on a rank, `RankTimeoutError`, or `DeadRankError` when a rank is dead.
        """
        wire.by_value(function)
        return self._calls.call(function, args, timeout=timeout, owner=self)

    def hold(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Remote:
        """Run `function(*args)` on every rank and keep the results there; a reference to them.

        The results live until nobody has the reference.
        """
        wire.by_value(function)
        remote = Remote(group=self, name=f"_held_{next(self._names)}")
        self._calls.call(inside.hold, (remote.name, function, *args), timeout=timeout, owner=self)
        weakref.finalize(remote, self._calls.forgotten.append, remote.name).atexit = False
        return remote

    def push(self, **values: Any) -> None:
        """Put values into the namespace of every rank."""
        self._calls.call(inside.push, (values,))

    def pull(self, expression: str, *, rank: int | None = None) -> Any:
        """The value of a name or expression on every rank as a list, or on one rank."""
        compile(expression, "<pull>", "eval")
        if rank is None:
            return self._calls.call(inside.pull, (expression,))
        return self._calls.call(inside.pull, (expression,), ranks=[rank])[0]

    def execute(
        self,
        code: str,
        *,
        ranks: Sequence[int] | None = None,
        filename: str | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        """Run code in the namespace of all ranks, or of some; the values of its last expression.

        A value that cannot be sent comes back as text. Raises SyntaxError before anything runs.
        """
        name = filename or f"<ranks cell {next(_cells)}>"
        cell.remember_source(code, name)
        cell.compile_cell(code, name)
        return self._calls.call(inside.execute, (code, name), ranks=ranks, timeout=timeout)

    def interrupt(self) -> None:
        """Stop the call that is under way in another thread; all ranks are idle and joined again after it."""
        self._calls.require_open()
        if self._calls.under_way:
            self._state.request_stop()

    def replace(self, rank: int) -> None:
        """Start a dead rank anew and join all ranks. Its variables are gone, those of the others are kept."""
        self._calls.require_open()
        self._calls.require_known([rank])
        if rank in self.alive:
            raise RanksError(
                f"rank {rank} is alive; replace() starts a dead rank anew. Use interrupt() to stop a call."
            )
        with progress.task(f"replacing rank {rank}"), self._calls.exclusive():
            self._calls.finish_join()
            self._calls.begin([rank])
            if len(self._state.living) == self._world_size:  # another dead rank may still have to be replaced
                self._calls.join()

    def close(self) -> None:
        """End all ranks; does nothing the second time."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextmanager
    def output_to(self, sink: Sink) -> Iterator[None]:
        """Hand what ranks write to another sink within the block; it is called as `sink(rank, stream, line)`."""
        before, self._state.sink = self._state.sink, sink
        try:
            yield
        finally:
            self._state.sink = before
