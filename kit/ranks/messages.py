"""What the controller and a rank say to each other: one small header, then the frames of a value.

Headers are structs of msgspec, since every call makes four: a frozen dataclass takes 3 us, a struct 0.2.
"""

import pickle
from enum import StrEnum

import msgspec

from kit.progress import Event
from kit.ranks.errors import Failure
from kit.ranks.link import Frames

Counts = dict[str, tuple[int, tuple[int, ...]]]


class Kind(StrEnum):
    """What a rank is asked to do."""

    CALL = "call"  # the value is (function, arguments)
    JOIN = "join"  # join the group of the epoch
    LEAVE = "leave"  # end the group
    CLOSE = "close"  # end the process


_KINDS = tuple(Kind)


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """Controller to rank. `forget`: names that nobody refers to any more.

    `function` is the number of a function that the rank has, or learns from `packed` (`functions.py`); the value is
    the arguments then. -1: the value is function and arguments.
    """

    kind: Kind
    number: int
    epoch: int
    forget: tuple[str, ...] = ()
    function: int = -1
    packed: bytes = b""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Rank to controller: command `number` is over; its value follows unless it failed.

    `collectives`: for each process group its name, collectives begun, ranks; unequal counts mean that
    ranks are out of step. `edited`: modules that were edited after this rank had imported them.
    """

    number: int
    failure: Failure | None = None
    collectives: Counts = {}
    edited: tuple[str, ...] = ()


Header = Command | Answer | Event


def pack(header: Header, value: Frames | None = None) -> Frames:
    """A message as frames. Fields go as a tuple: pickling a record costs ten times as much."""
    fields: tuple[object, ...]
    if isinstance(header, Command):
        kind = _KINDS.index(header.kind)
        fields = (0, kind, header.number, header.epoch, header.forget, header.function, header.packed)
    elif isinstance(header, Answer):
        fields = (1, header.number, header.failure, header.collectives, header.edited)
    else:
        fields = (2, header)
    return [pickle.dumps(fields, 5), *(value or [])]


def unpack(frames: Frames) -> tuple[Header, Frames]:
    """Header and value frames of a message."""
    what, *fields = pickle.loads(frames[0])
    header: Header
    if what == 0:
        kind, number, epoch, forget, function, packed = fields
        header = Command(kind=_KINDS[kind], number=number, epoch=epoch, forget=forget, function=function, packed=packed)
    elif what == 1:
        number, failure, collectives, edited = fields
        header = Answer(number=number, failure=failure, collectives=collectives, edited=edited)
    else:
        (header,) = fields
    return header, frames[1:]
