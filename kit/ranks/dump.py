"""Write what torch's flight recorder holds of every rank, to be read by `kit.explain_hang` or any other tool.

The ranks' own threads answer (`lookout.py`), so this works while a collective hangs; and torch keeps the entries of a
process group that was ended, so it works after the call was stopped, too. Files are JSON, one of torch's two forms of
a dump: the store asks for no secret, and what comes through it is never unpickled.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from kit.ranks.errors import RanksError

if TYPE_CHECKING:
    from kit.ranks.state import GroupState


def dump(state: "GroupState", folder: Path, *, seconds: float) -> tuple[Path, ...]:
    """One file for each rank that answers within `seconds`. Raises `RanksError` when none does."""
    pids = {rank: process.pid for rank, process in state.living.items()}
    epoch = state.epoch if state.call_epoch is None else state.call_epoch
    answers = state.questions.ask(pids, "dump", str(epoch), seconds=seconds)
    told = {rank: answer for rank, answer in sorted(answers.items()) if not answer.error}
    if not told:
        why = "; ".join(f"rank {rank}: {answer.error}" for rank, answer in sorted(answers.items()))
        raise RanksError(
            f"no rank gave its flight record within {seconds:g} s{f' ({why})' if why else ''}; expected at least one. "
            "ranks.stacks() tells where they are"
        )
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for rank, answer in told.items():
        written.append(folder / f"rank{rank}.json")
        written[-1].write_bytes(bytes(answer.value))
    return tuple(written)
