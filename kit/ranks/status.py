"""`%ranks`: one row for each rank with what it is doing, where, and the memory it holds."""

from dataclasses import dataclass

from kit.ranks.group import Ranks
from kit.ranks.stacks import RankStack, State
from kit.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Status:
    """The rows of a group, shown as a table; `hosts` names the machine of each rank, "" for this one."""

    group: str
    device: str
    rows: tuple[RankStack, ...]
    hosts: tuple[str, ...]
    note: str

    @property
    def table(self) -> Table:
        """Rank, process, state, seconds in it, line, device, host memory, and GPU memory that torch has allocated."""
        far = any(self.hosts)
        head = ("rank", "pid", "state", "seconds", "at", "device", "memory", "GPU", *(("host",) if far else ()))
        rows = tuple(
            (*_cells(row, self.device), *((host or "this one",) if far else ()))
            for row, host in zip(self.rows, self.hosts, strict=True)
        )
        return Table(head=head, rows=rows, notes=(self.note,) if self.note else (), left=(2, 4, 5, 8))

    def __repr__(self) -> str:
        return f"{self.group}\n{self.table}"

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def status(ranks: Ranks) -> Status:
    """The state of every rank of an open group; ranks that are busy answer too."""
    stacks = ranks.stacks(seconds=0.5)
    told = any(row.state is not State.IDLE for row in stacks.rows) or stacks.before is not None
    return Status(
        group=repr(ranks),
        device=ranks.device,
        rows=stacks.rows,
        hosts=tuple(ranks.hosts.get(row.rank, "") for row in stacks.rows),
        note=stacks.explain() if told else "",
    )


def format_bytes(count: int) -> str:
    """Bytes in words, as in "312 MB"; "" for none."""
    if count == 0:
        return ""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _cells(row: RankStack, device: str) -> tuple[str, ...]:
    dead = row.state is State.DEAD
    return (
        str(row.rank),
        "" if dead else str(row.pid),
        row.why if dead else str(row.state),
        "" if dead else f"{row.seconds:.1f}",
        row.place,
        device,
        format_bytes(row.bytes_resident),
        format_bytes(row.bytes_gpu),
    )
