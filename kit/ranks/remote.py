"""References to what lives on the ranks, and stand-ins for what cannot leave them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kit.ranks.group import Ranks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False, weakref_slot=True)
class Remote:
    """A name on every rank of a group. As an argument of `run` or `hold` it arrives as the object itself."""

    group: "Ranks"
    name: str

    def pull(self, *, rank: int | None = None) -> Any:
        """The objects of all ranks as a list, or that of one rank."""
        return self.group.pull(self.name, rank=rank)

    def __repr__(self) -> str:
        return f"Remote({self.name!r} on {self.group.world_size} ranks)"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RemoteRepr:
    """What a rank shows for a cell's value that cannot be sent; it prints as it prints there."""

    type: str
    text: str

    def __repr__(self) -> str:
        return self.text
