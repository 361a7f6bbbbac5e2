"""What the controller and a rank say to each other: one small header, then the frames of a value."""

import pickle
from dataclasses import dataclass, field
from enum import StrEnum

from kit.progress import Event
from kit.ranks.errors import Failure
from kit.ranks.wire import Frames

Counts = dict[str, tuple[int, tuple[int, ...]]]


class Kind(StrEnum):
    """What a rank is asked to do."""

    CALL = "call"  # the value is (function, arguments)
    JOIN = "join"  # join the group of the epoch
    LEAVE = "leave"  # end the group
    CLOSE = "close"  # end the process


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Controller to rank. `forget`: names that nobody refers to any more."""

    kind: Kind
    number: int
    epoch: int
    forget: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Rank to controller: command `number` is over; its value follows unless it failed.

    `collectives`: for each process group its name, collectives begun, ranks; unequal counts mean that
    ranks are out of step. `edited`: modules that were edited after this rank had imported them.
    """

    number: int
    failure: Failure | None = None
    collectives: Counts = field(default_factory=dict)
    edited: tuple[str, ...] = ()


Header = Command | Answer | Event


def pack(header: Header, value: Frames | None = None) -> Frames:
    """A message as frames."""
    return [pickle.dumps(header), *(value or [])]


def unpack(frames: Frames) -> tuple[Header, Frames]:
    """Header and value frames of a message."""
    header: Header = pickle.loads(frames[0])
    return header, frames[1:]
