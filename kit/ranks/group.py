"""`Ranks`: the processes of a group, as a person talks to them.

Everything here is one call of a function on the ranks (`calls.py` makes it) or a question about the group.
"""

import itertools
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from kit import progress
from kit.ranks import cell, inside, wire
from kit.ranks.batch_script import batch_script
from kit.ranks.calls import Calls
from kit.ranks.describe import Docs
from kit.ranks.dump import dump
from kit.ranks.errors import RanksError
from kit.ranks.output import Sink
from kit.ranks.remote import Remote
from kit.ranks.renewal import Renewal
from kit.ranks.stacks import Stacks
from kit.ranks.state import GroupState
from kit.ranks.survey import survey

_COMPLETE_SECONDS = 0.3
_cells = itertools.count(1)


class Ranks:
    """A group of rank processes with a process group between them; made by `launch`.

    Use it as a context manager or call `close()`. Calls from several threads wait for one another.
    `timeout` (seconds) of a call, or of `launch` for all calls, ends the call with `RankTimeoutError`.
    `autoreload`: set it to True and cells run with the person's modules as they are on disk; otherwise a module that
    was edited after its import is told once and `reload` loads it anew.
    """

    def __init__(self, state: GroupState, calls: Calls, *, world_size: int, backend: str, device: str) -> None:
        self._state = state
        self._calls = calls
        self._world_size, self._backend, self._device = world_size, backend, device
        self.autoreload = False
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
    def engines(self) -> dict[int, int]:
        """The ipyparallel engine that each rank is on now; empty when ranks run on this machine alone."""
        return {r: p.engine for r, p in self._state.processes.items() if p.engine is not None}

    @property
    def hosts(self) -> dict[int, str]:
        """The machine each rank runs on, "" for this one."""
        return {rank: process.host for rank, process in self._state.processes.items()}

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
        arguments = (code, name, self.autoreload)
        return self._calls.call(inside.execute, arguments, ranks=ranks, timeout=timeout, title=name.strip("<>"))

    def seed(self, number: int) -> list[int]:
        """Seed torch (GPUs too), numpy and `random` on every rank with `number` plus the rank; the seeds.

        So ranks draw different numbers (dropout, data augmentation) and two runs draw the same. Weights must be equal:
        make the model before, or give it to DDP or the kit's strategies, which send those of rank 0.
        Which samples a rank sees is the sampler's matter, with one seed for all ranks:

            sampler = DistributedSampler(data, world_size, rank, shuffle=True, seed=0, drop_last=True)
            loader = DataLoader(data, batch_size=8, sampler=sampler)
            for epoch in range(2):
                sampler.set_epoch(epoch)   # else every epoch has the order of the first
                for batch in loader: ...

        `rank` and `world_size` are in the namespace of every rank. Without `drop_last` some samples are seen twice.
        """
        return self._calls.call(inside.seed, (number,))

    def reload(self) -> tuple[str, ...]:
        """Load the person's modules anew that were edited after ranks had imported them; their names.

        Functions and classes imported by name are exchanged too; objects made before keep their old class.
        Raises `RankError` when the new text raises.
        """
        return tuple(sorted({name for names in self._calls.call(inside.reload, ()) for name in names}))

    # ---- what it tells and how it is mended -----------------------------------------------------------------

    def stacks(self, *, seconds: float = 1.0) -> Stacks:
        """Where every rank is: its line, since when, and what it waits for. Works while a call is under way.

        From another thread then (the rank panel, a cell of a subshell); in a blocking cell press stop first: the
        places at the stop are kept in `.before` and in the error. Ranks that do not answer within `seconds` are told
        as such. Collectives are those of torch's flight recorder, which keeps 200 on each rank.
        """
        self._calls.require_open()
        return survey(self._state, seconds=seconds)

    def dump(self, folder: str | Path, *, seconds: float = 30.0) -> tuple[Path, ...]:
        """Write the last collectives of each rank, as torch's flight recorder has them, to `folder`/rank<n>.json.

        The paths of the files, for `kit.explain_hang` and `kit.read_log`. Works while a call hangs (from another
        thread, as `stacks`) and after it was stopped or timed out: they are the collectives of the process group in
        which the last call ran, at most 200 (`TORCH_FR_BUFFER_SIZE`). A rank that is dead, or gives no answer within
        `seconds`, leaves no file; `RanksError` when none does. The first dump takes about 5 s, later ones none.
        """
        self._calls.require_open()
        return dump(self._state, Path(folder), seconds=seconds)

    def docs(self, name: str, *, rank: int | None = None) -> Docs:
        """What an object on a rank is (by default on the first living one): type, signature, docstring.

        Raises `RanksError` when there is no such name, or no answer within a second.
        """
        self._calls.require_open()
        told = self._state.questions.ask_one(self.pids, "describe", name, rank=rank, seconds=1.0)
        if told.error:
            raise RanksError(f"{name}: {told.error}; expected a name that a %%ranks cell or push() made")
        return msgspec.json.decode(told.value, type=Docs)

    def complete(self, text: str) -> list[str]:
        """Names on the first living rank that begin with `text`, such as "model.wei"; empty while a call is made."""
        if self._calls.under_way or not self.alive:
            return []
        try:
            told = self._state.questions.ask_one(self.pids, "complete", text, rank=None, seconds=_COMPLETE_SECONDS)
        except RanksError:  # it is slow to answer; the person types on
            return []
        return [] if told.error else msgspec.json.decode(told.value, type=list[str])

    def interrupt(self) -> None:
        """Stop the call that is under way in another thread; all ranks are idle and joined again after it."""
        self._calls.require_open()
        if self._calls.under_way:
            self._state.request_stop()

    def replace(self, rank: int) -> Renewal:
        """Start a dead rank anew and join all ranks. Its variables are gone, those of the others are kept.

        Says what was lost, judged by what the other ranks have. Takes a few tenths of a second.
        """
        self._calls.require_open()
        self._calls.require_known([rank])
        if rank in self.alive:
            raise RanksError(
                f"rank {rank} is alive; replace() starts a dead rank anew. Use interrupt() to stop a call."
            )
        begun = time.monotonic()
        with progress.task(f"replacing rank {rank}"), self._calls.exclusive():
            self._calls.finish_join_before_renewal()
            kept = tuple(self._state.living)
            self._calls.renew([rank])
        return self._renewal((rank,), begun, lost=self._state.questions.names(self.pids, kept), kept=kept)

    def restart(self) -> Renewal:
        """Start all ranks anew with the same settings, whatever they are doing; says what was lost.

        References from `hold` are void afterwards. A call that another thread makes is stopped first.
        """
        self.interrupt()
        lost = self._state.questions.names(self.pids, self.alive)
        begun = time.monotonic()
        with progress.task("restarting all ranks"), self._calls.exclusive():
            self._state.end_processes()
            self._calls.renew(range(self._world_size))
        return self._renewal(tuple(range(self._world_size)), begun, lost=lost)

    def _renewal(
        self, ranks: tuple[int, ...], begun: float, *, lost: tuple[str, ...], kept: tuple[int, ...] = ()
    ) -> Renewal:
        seconds = time.monotonic() - begun
        dead = tuple(sorted(self.ended))
        return Renewal(ranks=ranks, seconds=seconds, epoch=self.epoch, lost=lost, kept=kept, dead=dead)

    def batch_script(self, training: Callable[..., Any] | str | Path, *args: Any, **options: Any) -> str:
        """A Slurm batch file that runs the same function without the notebook, on as many ranks as here.

        Options are those of `kit.ranks.batch_script`; by default one node, this backend.
        """
        options.setdefault("backend", self._backend)
        options.setdefault("ranks_per_node", max(1, self._world_size // int(options.get("nodes", 1))))
        return batch_script(training, *args, **options)

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
