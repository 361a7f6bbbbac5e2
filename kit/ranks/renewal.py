"""What came of starting ranks anew: how long it took and what was lost, for the person to read."""

from dataclasses import dataclass

from kit.ranks.errors import MAX_RANKS_SHOWN

_MAX_NAMES = 12


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Renewal:
    """Ranks that were started anew. `lost`: names of cells that they had and have no more, as far as it is known.

    `kept`: ranks that kept theirs. `dead`: those that still have to be replaced; until then there is no group.
    """

    ranks: tuple[int, ...]
    seconds: float
    epoch: int
    lost: tuple[str, ...]
    kept: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()

    def __repr__(self) -> str:
        many = len(self.ranks) > 1
        state = f"all ranks are joined (epoch {self.epoch})"
        if self.dead:
            state = f"{_named(self.dead)} still dead: replace {'them' if len(self.dead) > 1 else 'it'} too"
        parts = [f"{_named(self.ranks, 'were', 'was')} started anew in {self.seconds:.2f} s; {state}."]
        if self.lost:
            more = f" and {len(self.lost) - _MAX_NAMES} more names" if len(self.lost) > _MAX_NAMES else ""
            parts.append(f"Lost there: {', '.join(self.lost[:_MAX_NAMES])}{more}. Run the cells that make them again.")
        else:
            parts.append(f"{'Their' if many else 'Its'} variables are gone.")
        if self.kept:
            parts.append(f"{_named(self.kept, 'keep', 'keeps')} {'their' if len(self.kept) > 1 else 'its'} variables.")
        return " ".join(parts)


def _named(ranks: tuple[int, ...], many: str = "are", one: str = "is") -> str:
    shown = ", ".join(map(str, ranks[:MAX_RANKS_SHOWN]))
    more = f" and {len(ranks) - MAX_RANKS_SHOWN} more" if len(ranks) > MAX_RANKS_SHOWN else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more} {many if len(ranks) > 1 else one}"
