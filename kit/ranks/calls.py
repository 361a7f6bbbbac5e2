"""One call on a group of ranks: send, gather, bring the group in order again, raise or return.

After an aborted epoch the ranks are told to join the next one at once, but their answers are read before the next call:
the person gets control back without waiting for it.
"""

import contextlib
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from kit.ranks import wire
from kit.ranks.death import how_it_ended
from kit.ranks.errors import (
    DeadRankError,
    Failure,
    InterruptedRanksError,
    RankError,
    RankNumberError,
    RanksError,
    RankTimeoutError,
)
from kit.ranks.gather import Outcome, gather
from kit.ranks.link import Frames
from kit.ranks.messages import Kind
from kit.ranks.state import GroupState
from kit.ranks.turn import Turn

JOIN_SECONDS = 60.0


class Calls:
    """Makes calls on the ranks of one group, one at a time. `timeout` in seconds holds for calls without their own."""

    def __init__(self, state: GroupState, *, world_size: int, timeout: float | None) -> None:
        self._state = state
        self._world_size = world_size
        self._timeout = timeout
        self.forgotten: list[str] = []  # names on the ranks that nobody refers to any more

    @property
    def under_way(self) -> bool:
        """Whether a call is being made."""
        return self._state.caller is not None

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        ranks: Sequence[int] | None = None,
        timeout: float | None = None,
        owner: object = None,
        title: str = "",
    ) -> list[Any]:
        """`function(*args)` on the ranks (None: all), results in the order of `ranks`.

        `owner` is the group whose references the arguments may hold; `title` names the call in its progress.
        """
        chosen = list(range(self._world_size)) if ranks is None else list(ranks)
        if ranks is not None:
            self.require_known(chosen)
        with self.exclusive():
            if self._state.joining is not None:
                self.finish_join()
            self._require_alive(chosen)
            value, more = self._packed(function, args, owner, chosen)
            forget, self.forgotten[:] = tuple(self.forgotten), []
            view = self._state.begin_call(title or getattr(function, "__name__", "call"))
            self._state.output.someone_waits = True  # from the first line on, also of a fast printer
            number = self._state.send(chosen, Kind.CALL, value, forget=forget, **more)
            limit = self._timeout if timeout is None else timeout
            try:
                outcome = gather(self._state, number, chosen, timeout=limit, call=view)
            except BaseException:  # a sink or a progress listener of the person's raised: the ranks go on
                self._state.abort("the notebook stopped waiting")
                self._state.begin_join()
                raise
            if more:
                self._note_learned(more["function"], outcome)
            results, unread = _read_values(outcome)
            went_well = not (outcome.failures or unread or outcome.aborted)
            note = "" if went_well else self._settle(outcome)
            if self._state.edited:
                self._tell_edited()
        if not went_well:
            _raise_failures(outcome, unread, note=note, timeout=limit)
        return [results[rank] for rank in chosen]

    def exclusive(self) -> Turn:
        """One call at a time; Ctrl-C is taken at the points where the wait can be ended."""
        return Turn(self._state)

    def begin(self, ranks: Sequence[int]) -> None:
        """Make processes for the ranks and wait until they can take commands. Raises `RankError`."""
        for rank in ranks:
            self._state.spawn(rank)
        outcome = gather(self._state, 0, ranks, timeout=JOIN_SECONDS)
        _raise_failures(outcome, [], note="", timeout=JOIN_SECONDS)

    def renew(self, ranks: Sequence[int]) -> None:
        """Start ranks anew and join all in a new group, unless others are dead still. Raises `RankError`."""
        self.begin(ranks)
        if len(self._state.living) == self._world_size:
            self.join()

    def join(self) -> None:
        """Join all ranks in the group of the next epoch and wait for it. Raises `RankError`."""
        self._state.begin_join()
        self.finish_join()

    def finish_join(self) -> None:
        """Read the answers to a join that was begun; a join that failed is tried once more at the next call."""
        number = self._state.joining
        if number is None:
            return
        joiners = self._state.joiners or self._state.living
        outcome = gather(self._state, number, joiners, timeout=JOIN_SECONDS)
        self._state.joining = None
        if outcome.failures or outcome.reason:
            note = self._settle(outcome)
            _raise_failures(outcome, [], note=note, timeout=JOIN_SECONDS)

    def finish_join_before_renewal(self) -> None:
        """Read the answers to a join that was begun; who died in it is told by who is to be started anew."""
        with contextlib.suppress(RankError):
            self.finish_join()
        self.finish_join()  # the others have left since

    def require_open(self) -> None:
        """Raise `ClosedError` when the group is closed."""
        self._state.require_open()

    def require_known(self, ranks: Sequence[int]) -> None:
        """Raise `RankNumberError` when a number is no rank of this group."""
        unknown = [rank for rank in ranks if rank not in range(self._world_size)]
        if unknown or not ranks or len(set(ranks)) < len(ranks):
            raise RankNumberError(
                f"ranks {', '.join(map(str, ranks)) or '(none)'}: expected different numbers from 0 to "
                f"{self._world_size - 1}, the ranks of this group"
            )

    def _require_alive(self, ranks: Sequence[int]) -> None:
        if not self._state.listening.someone_ended():
            return
        living = self._state.living
        dead = [rank for rank in ranks if rank not in living]
        if not dead:
            return
        rank = dead[0]
        how = how_it_ended(self._state.processes[rank].exit_code or 0)
        others = f" ranks.execute(code, ranks={list(living)}) reaches the others." if living else ""
        raise DeadRankError(
            f"rank {rank} is dead ({how}); expected all of ranks {', '.join(map(str, ranks))} alive. "
            f"ranks.replace({rank}) starts it anew and rejoins all ranks.{others}"
        )

    def _packed(
        self, function: Callable[..., Any], args: tuple[Any, ...], owner: object, ranks: Sequence[int]
    ) -> tuple[Frames, dict[str, Any]]:
        """The value of a command, and what its header says of the function. Raises `RanksError`."""
        try:
            sent = self._state.functions.number_of(function, _packed_alone)
            if sent is None:
                return _whole(function, args, owner), {}
            number, packed = sent
            for rank in ranks:
                if number not in self._state.processes[rank].functions:
                    break
            else:
                packed = b""
            return wire.dumps(args, owner=owner), {"function": number, "packed": packed}
        except Exception as error:  # pickling runs the objects' own code
            name = getattr(function, "__qualname__", repr(function))
            raise RanksError(
                f"{name} or its arguments cannot be sent to the ranks ({type(error).__name__}: {error}); expected what "
                "cloudpickle takes. Make open files, locks and process groups on the ranks instead."
            ) from error

    def _note_learned(self, number: int, outcome: Outcome) -> None:
        """Ranks that gave a value have the function; one that failed may have done so before it was learned."""
        for rank in outcome.values:
            self._state.processes[rank].functions.add(number)

    def _tell_edited(self) -> None:
        """Say once, as a line of the ranks, which modules they run in an older form than is on disk."""
        edited, self._state.edited = self._state.edited, {}
        for module, ranks in edited.items():
            self._state.sink(
                min(ranks),
                "stderr",
                f"note: {module} was edited after rank{'s' if len(ranks) > 1 else ''} "
                f"{', '.join(map(str, sorted(ranks)))} imported it, and the old code has run; ranks.reload() loads it "
                "anew, ranks.autoreload = True before every cell",
            )

    def _settle(self, outcome: Outcome) -> str:
        """Bring the group in order after a call; one sentence for the person on what became of it."""
        state = self._state
        if outcome.deaths:
            if not outcome.aborted:
                state.abort("a rank died")
            state.begin_leave()
            return "The other ranks are idle and keep their variables." if state.living else ""
        if not outcome.aborted:
            if not outcome.failures or state.in_step():
                return ""
            state.abort("ranks are out of step")
        state.begin_join()
        return (
            f"All ranks are idle and in a new process group (epoch {state.epoch}). Variables are kept; build again "
            "what held the old group (DDP and FSDP modules, device meshes)."
        )


def _whole(function: Callable[..., Any], args: tuple[Any, ...], owner: object) -> Frames:
    """Function and arguments in one pickle. Raises what pickling raises."""
    if wire.are_plain(args) and wire.goes_by_name(function):
        return [pickle.dumps((function, args), 5)]
    return wire.dumps((function, args), owner=owner)


def _packed_alone(function: Callable[..., Any]) -> bytes:
    return bytes(wire.dumps(function)[0])


def _read_values(outcome: Outcome) -> tuple[dict[int, Any], list[Failure]]:
    """Values by rank, and failures for those that cannot be read here."""
    results: dict[int, Any] = {}
    unread: list[Failure] = []
    for rank, frames in outcome.values.items():
        try:
            results[rank] = wire.loads(frames)
        except Exception as error:  # unpickling runs the objects' own code
            message = (
                f"the result cannot be read in the notebook ({type(error).__name__}: {error}). Return plain values or "
                "tensors, or keep it on the ranks with ranks.hold(...)"
            )
            unread.append(Failure(rank=rank, type="ResultError", message=message))
    return results, unread


def _raise_failures(outcome: Outcome, unread: list[Failure], *, note: str, timeout: float | None) -> None:
    failures = [*outcome.failures, *unread]
    if outcome.reason and outcome.stacks is not None:
        note = "\n".join(part for part in (f"Where the ranks were: {outcome.stacks.explain()}.", note) if part)
    if outcome.reason == "interrupted":
        raise InterruptedRanksError(failures, note=note, stacks=outcome.stacks)
    causes = [failure for failure in failures if failure.died]
    causes += [failure for failure in failures if not failure.died and not failure.folded]
    if outcome.reason == "timeout":
        late = [failure for failure in failures if failure.unanswered]
        first = late[0].rank if late else 0
        said = Failure(rank=first, type="Timeout", message=f"no answer within {timeout:g} s", frames=_at(late))
        raise RankTimeoutError(causes or [said], consequences=late[1:], note=note, stacks=outcome.stacks)
    if failures:
        causes = causes or failures[:1]
        consequences = [f for f in failures if f not in causes]
        raise RankError(causes, consequences=consequences, note=note, stacks=outcome.stacks)


def _at(failures: list[Failure]) -> tuple[Any, ...]:
    return failures[0].frames if failures else ()
