"""Put the places of all ranks into one sentence.

Ranks that do the same are told together, at most four kinds; those that wait come first, since they are what the
person asks about, then those that are missing.
"""

from collections.abc import Sequence

from kit.ranks.errors import MAX_RANKS_SHOWN
from kit.ranks.stacks import Collective, RankStack, Stacks, State

_ORDER = (
    State.COLLECTIVE, State.STORE, State.FAILED, State.DEAD, State.SILENT, State.FINISHED, State.WAITING,
    State.RUNNING, State.JOINING, State.IDLE,
)  # fmt: skip


def explain(stacks: Stacks) -> str:
    """The sentence, without a full stop; it names collectives that do not fit together as such."""
    now = "all ranks are idle" if all(row.state is State.IDLE for row in stacks.rows) else _explain(stacks.rows)
    if stacks.before is None:
        return now
    return f"{now}; where they were when the last call was stopped: {explain(stacks.before)}"


def _explain(rows: Sequence[RankStack]) -> str:
    awaited = [row.collective for row in rows if row.collective is not None and row.state is State.COLLECTIVE]
    together = _together(rows, awaited)
    if together:
        return together
    phrases: dict[tuple[str, str], list[int]] = {}
    for row in sorted(rows, key=lambda row: _ORDER.index(row.state)):
        phrases.setdefault(_phrases(row, awaited), []).append(row.rank)
    parts = [_told(ranks, one, many) for (one, many), ranks in phrases.items()]
    rest = len(parts) - MAX_RANKS_SHOWN
    shown = parts[:MAX_RANKS_SHOWN] + ([f"and {rest} more that differ"] if rest > 0 else [])
    passed = [row.last for row in rows if row.state is not State.COLLECTIVE and _took_another(row, awaited)]
    return _mismatch([*awaited, *(last for last in passed if last is not None)]) + "; ".join(shown)


def _together(rows: Sequence[RankStack], awaited: Sequence[Collective]) -> str:
    """The sentence when nobody is missing; "" otherwise."""
    kinds = {(c.kind, c.number, c.tensors, c.group) for c in awaited}
    if len(awaited) < len(rows) or len(rows) < 2 or len(kinds) > 1 or len({row.place for row in rows}) > 1:
        return ""
    at = f", {rows[0].place}" if rows[0].place else ""
    return f"all ranks are in {awaited[0]}{at}; nobody is missing, so it is the transfer that takes time"


def _mismatch(awaited: Sequence[Collective]) -> str:
    """Words to go in front when ranks have met in what does not fit together."""
    for group in {c.group for c in awaited}:
        members = [c for c in awaited if c.group == group]
        if len({c.number for c in members}) > 1:
            return "ranks are out of step: "
        if len({c.kind for c in members}) > 1:
            return "ranks have met in different collectives: "
        if len({c.tensors for c in members}) > 1:
            return "ranks have met in one collective with different tensors: "
    return ""


def _phrases(row: RankStack, awaited: Sequence[Collective]) -> tuple[str, str]:
    """What to say after "rank 0" and after "ranks 0, 1"."""
    at = f" {row.place}" if row.place else ""
    match row.state:
        case State.COLLECTIVE:
            where = ",".join(part for part in (f" {row.collective}", at) if part)
            return f"waits in{where}", f"wait in{where}"
        case State.STORE:
            what = f"{row.collective}" if row.collective else "the store"
            where = f"{what},{at}" if at else what
            return f"waits in {where}", f"wait in {where}"
        case State.FAILED:
            where = f" at{at}" if at else ""
            return (f"left{where} with {row.why}",) * 2
        case State.DEAD:
            return f"is dead ({row.why})", f"are dead ({row.why})"
        case State.SILENT:
            why = "gave no answer: stopped, or in native code that holds Python's lock"
            return why, why
        case State.FINISHED:
            after = f" after {row.last}" if _took_another(row, awaited) else ""
            return f"has finished{after}", f"have finished{after}"
        case State.IDLE:
            return "is idle", "are idle"
        case State.JOINING:
            return "joins the group", "join the group"
        case _:
            verb, verbs = ("waits", "wait") if row.state is State.WAITING else ("runs", "run")
            where = f" at{at}" if at else ""
            time = f" for {row.seconds:.0f} s" if row.seconds >= 1 else ""
            missing = row.last is not None and any(not c.group and row.last.number < c.number for c in awaited)
            late = ("has not come to it and ", "have not come to it and ") if missing else ("", "")
            after = f" after {row.last}" if _took_another(row, awaited) else ""
            return f"{late[0]}{verb}{where}{time}{after}", f"{late[1]}{verbs}{where}{time}{after}"


def _took_another(row: RankStack, awaited: Sequence[Collective]) -> bool:
    """Whether a rank has left behind, under the same number, another collective than the one that ranks wait in.

    NCCL lets one side of two that do not fit together end.
    """
    last = row.last
    return last is not None and any(
        c.begun and (c.group, c.number) == ("", last.number) and (c.kind, c.tensors) != (last.kind, last.tensors)
        for c in awaited
    )


def _told(ranks: list[int], one: str, many: str) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} {one}"
    more = f" and {len(ranks) - MAX_RANKS_SHOWN} more" if len(ranks) > MAX_RANKS_SHOWN else ""
    return f"ranks {', '.join(map(str, ranks[:MAX_RANKS_SHOWN]))}{more} {many}"
