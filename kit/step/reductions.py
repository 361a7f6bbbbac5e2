"""Over which groups each value of a step was summed on its way, told from the flow alone.

A history is the groups over which a value was summed, in order. A value that ranks compute from their own batch has the
empty history; a sum over ranks adds its group; what has several sources has all their histories. So a gradient that
reaches its update along one unreduced path shows it, whatever the other paths do.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch.fx import Node

from kit._torch import collectives
from kit.step.flow import Flow, Version
from kit.step.provenance import CARRIES, PHASES

History = tuple[str, ...]
OWN: History = ()  # of a value that is this rank's alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Histories:
    """The histories of one version: of what it is made of, and of what only scales it."""

    of: frozenset[History]
    scales: frozenset[History]


def histories_of(flow: Flow, groups: frozenset[str]) -> list[Histories]:
    """The histories of every version, counting the sums over `groups` that the step itself makes."""
    found: list[Histories] = []
    for version in flow.versions:
        reads = [found[number] for number in version.reads]
        scaling = [found[number] for number in version.scales]
        of = frozenset(history for read in reads for history in read.of)
        scales = frozenset(history for read in reads for history in read.scales)
        scales |= frozenset(history for read in scaling for history in (*read.of, *read.scales))
        if version.reads and not of and custom(version.node).get("kit_phase") in PHASES:
            of = frozenset({OWN})  # computed on this rank, from its batch or from parameters alone
        group = group_of(version.node)
        if is_sum_of_the_step(version.node) and group in groups:
            of, scales = (frozenset((*history, group) for history in kind) for kind in (of, scales))
        found.append(Histories(of=of, scales=scales))
    return found


def path_back(flow: Flow, histories: list[Histories], number: int, history: History, name: str = "") -> list[Node]:
    """The nodes along which version `number` got `history` of what it is made of, oldest first.

    From the update back through the sums to the last gradient that is of this rank alone. Of a bucket's parts that of
    parameter `name` is followed.
    """
    nodes: list[Node] = []
    while True:
        version = flow.versions[number]
        if not nodes or nodes[-1] is not version.node:
            nodes.append(version.node)
        if history and is_sum_of_the_step(version.node) and group_of(version.node) == history[-1]:
            history = history[:-1]
        elif not history and _is_backward_compute(version):
            break
        sources = [read for read in version.reads if history in histories[read].of]
        if not sources:
            break
        mine = _part_of(version, name)
        number = mine if mine in sources else sources[-1]
    return nodes[::-1]


def _part_of(version: Version, name: str) -> int | None:
    """The version that a bucket is made of for one parameter; None when the node packs nothing of it."""
    parts = version.node.all_input_nodes
    if len(parts) != len(version.reads) or len(parts) < 2:
        return None
    return next((v for part, v in zip(parts, version.reads, strict=True) if custom(part).get(CARRIES) == name), None)


def scale_back(flow: Flow, histories: list[Histories], number: int, history: History) -> list[Node]:
    """The nodes along which version `number` is scaled by a value of `history`, oldest first."""
    nodes: list[Node] = []
    while True:
        version = flow.versions[number]
        nodes.append(version.node)
        scaling = [s for s in version.scales if history in histories[s].of]
        if scaling:
            return [*path_back(flow, histories, scaling[0], history), *nodes[::-1]]
        sources = [r for r in (*version.reads, *version.scales) if history in histories[r].scales]
        if not sources:
            return nodes[::-1]
        number = sources[-1]


def sums_before(flow: Flow, number: int) -> Iterator[Node]:
    """The sums of the step nearest before version `number`, each once."""
    open_versions, seen = [number], set()
    while open_versions:
        number = open_versions.pop()
        if number in seen:
            continue
        seen.add(number)
        version = flow.versions[number]
        if is_sum_of_the_step(version.node):
            yield version.node
        else:
            open_versions += version.reads


def is_sum_of_the_step(node: Node) -> bool:
    """Whether a node sums over ranks for the step, and not because the user's model does."""
    if node.target not in (collectives.ALL_REDUCE, collectives.REDUCE_SCATTER):
        return False
    said = custom(node)
    return CARRIES in said or said.get("kit_phase") not in PHASES or not said.get("kit_source")


def group_of(node: Node) -> str:
    """The group of a collective."""
    return str(node.args[-1]) if node.args else ""


def custom(node: Node) -> dict[str, str]:
    """The note that the trace left on a node."""
    found: dict[str, str] = node.meta.get("custom") or {}
    return found


def _is_backward_compute(version: Version) -> bool:
    said = custom(version.node)
    return said.get("kit_phase") in PHASES and CARRIES not in said and len(version.reads) > 0
