"""Make a `Stacks` record of a group as it is now; works in any thread, with or without a call under way."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kit.ranks.death import how_it_ended
from kit.ranks.errors import Failure
from kit.ranks.questions import values_of
from kit.ranks.stacks import RankStack, Stacks, State

if TYPE_CHECKING:
    from kit.ranks.state import GroupState


@dataclass(slots=True, kw_only=True)
class CallView:
    """The call that is under way, as other threads may see it: its name, its number, who has answered how.

    `answered` is None for a rank that gave a value.
    """

    title: str
    number: int
    answered: dict[int, Failure | None] = field(default_factory=dict)


def survey(state: "GroupState", *, seconds: float) -> Stacks:
    """Ask all ranks where they are; those that do not answer within `seconds` are told as such."""
    processes, begun = dict(state.processes), state.call
    pids = {rank: process.pid for rank, process in state.living.items()}
    looks = values_of(state.questions.ask(pids, "look", seconds=seconds).items(), RankStack)
    call = state.call or begun  # it may have begun or ended while the ranks were asked
    rows = []
    for rank, process in sorted(processes.items()):
        if rank not in pids:
            why = how_it_ended(process.exit_code) if process.exit_code is not None else ""
            rows.append(RankStack(rank=rank, pid=process.pid, state=State.DEAD, why=why))
            continue
        row = looks.get(rank, RankStack(rank=rank, pid=process.pid, state=State.SILENT))
        if call is not None and rank in call.answered:
            row = _answered(row, call.answered[rank])
        rows.append(row)
    if call is None:
        return Stacks(group=state.name, rows=tuple(rows), before=state.stopped_at)
    return Stacks(group=state.name, rows=tuple(rows), call=call.title, number=call.number)


def _answered(row: RankStack, failure: Failure | None) -> RankStack:
    if failure is None:
        return replace(row, state=State.FINISHED)
    return replace(row, state=State.FAILED, why=failure.type, frames=failure.frames, line_seconds=0.0)
