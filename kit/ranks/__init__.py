"""Start, talk to, watch, abort, rejoin and replace the processes of a group.

`launch` gives a `Ranks` group that runs functions and cells; the magics are a face on it. This room knows nothing
of graphs, steps or timelines.
"""

from kit.ranks.describe import Docs
from kit.ranks.engine import current, launch, shutdown
from kit.ranks.errors import (
    ClosedError,
    DeadRankError,
    Failure,
    Frame,
    InterruptedRanksError,
    LaunchError,
    RankError,
    RankNumberError,
    RanksError,
    RankTimeoutError,
)
from kit.ranks.group import Ranks
from kit.ranks.inside import in_rank, rank_device
from kit.ranks.remote import Remote, RemoteRepr
from kit.ranks.renewal import Renewal
from kit.ranks.stacks import Collective, RankStack, Stacks, State

__all__ = [
    "ClosedError",
    "Collective",
    "DeadRankError",
    "Docs",
    "Failure",
    "Frame",
    "InterruptedRanksError",
    "LaunchError",
    "RankError",
    "RankNumberError",
    "RankStack",
    "RankTimeoutError",
    "Ranks",
    "RanksError",
    "Remote",
    "RemoteRepr",
    "Renewal",
    "Stacks",
    "State",
    "current",
    "in_rank",
    "launch",
    "rank_device",
    "shutdown",
]
