"""Who is alive: one row for each rank of a group."""

import html
from dataclasses import dataclass
from pathlib import Path

from kit.ranks.death import how_it_ended
from kit.ranks.group import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """One rank; `state` is "alive", or how the process ended; `bytes_resident` of host memory, 0 when dead."""

    rank: int
    pid: int
    state: str
    device: str
    bytes_resident: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Status:
    """The rows of a group, shown as a table."""

    group: str
    rows: tuple[RankRow, ...]

    def __repr__(self) -> str:
        lines = [self.group, f"{'rank':>4}  {'pid':>8}  {'state':<12}  {'device':<8}  {'memory':>9}"]
        lines += [
            f"{row.rank:>4}  {row.pid:>8}  {row.state:<12}  {row.device:<8}  {row.bytes_resident / 1e6:>6.0f} MB"
            for row in self.rows
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("rank", "pid", "state", "device", "memory"))
        body = "".join(
            f"<tr><td>{row.rank}</td><td>{row.pid}</td><td>{html.escape(row.state)}</td>"
            f"<td>{html.escape(row.device)}</td><td>{row.bytes_resident / 1e6:.0f} MB</td></tr>"
            for row in self.rows
        )
        return f"<table><caption>{html.escape(self.group)}</caption><tr>{head}</tr>{body}</table>"


def status(ranks: Ranks) -> Status:
    """The state of every rank of an open group; asks the system, not the ranks."""
    ended = ranks.ended
    alive = ranks.pids
    rows = [
        RankRow(
            rank=rank,
            pid=alive.get(rank, 0),
            state=how_it_ended(ended[rank]) if rank in ended else "alive",
            device=ranks.device,
            bytes_resident=_bytes_resident(alive[rank]) if rank in alive else 0,
        )
        for rank in range(ranks.world_size)
        if rank in alive or rank in ended
    ]
    return Status(group=repr(ranks), rows=tuple(rows))


def _bytes_resident(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has just ended
        return 0
    line = next((line for line in text.splitlines() if line.startswith("VmRSS:")), "VmRSS: 0 kB")
    return int(line.split()[1]) * 1024
