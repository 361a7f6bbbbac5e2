"""What a timeline view says of one event: its times, where it ran, who launched it, who it waited for."""

from collections.abc import Iterator

import numpy as np

from kit.timeline.launches import launch_of
from kit.timeline.match import Collective, match
from kit.timeline.nesting import enclosing
from kit.timeline.record import DEVICE_CATEGORIES, Category, Timeline


class Describer:
    """Answers for one timeline; what needs all of it is found when it is first asked for."""

    def __init__(self, timeline: Timeline, *, zero_ns: int) -> None:
        self._timeline = timeline
        self._zero_ns = zero_ns
        self._collectives: dict[int, Collective] | None = None

    def describe(self, row: int) -> list[tuple[str, str]]:
        """Terms and texts of one row of the timeline, the name first."""
        t = self._timeline
        said = [
            ("name", t.strings[t.name[row]]),
            ("rank", "unknown" if t.rank[row] < 0 else str(t.rank[row])),
            ("start", f"{(int(t.start_ns[row]) - self._zero_ns) / 1e6:.6f} ms"),
            ("duration", f"{int(t.duration_ns[row]) / 1e3:.3f} \u00b5s"),
            ("what", Category(int(t.category[row])).name.lower().replace("_", " ")),
        ]
        if t.category[row] in DEVICE_CATEGORIES:
            said.append(("place", f"device {t.device[row]}, stream {t.stream[row]}"))
        else:
            lane = t.lanes[t.lane[row]]
            said.append(("place", f"process {lane.pid}, thread {lane.tid}"))
        return [*said, *self._launch(row), *self._collective(row), *self._extent(row)]

    def _launch(self, row: int) -> Iterator[tuple[str, str]]:
        t = self._timeline
        if t.category[row] not in DEVICE_CATEGORIES:
            return
        call = int(launch_of(t)[row])
        if call >= 0:
            delay = (int(t.start_ns[row]) - int(t.start_ns[call])) / 1e3
            yield "launched by", f"{t.strings[t.name[call]]}, {delay:.3f} \u00b5s before"
            operator = int(enclosing(t, np.array([call]), t.category == Category.CPU_OP)[0])
            if operator >= 0:
                yield "operator", t.strings[t.name[operator]]
        if t.cuda_graph[row] >= 0:
            yield "CUDA graph", f"{t.cuda_graph[row]}, node {t.graph_node[row]}"

    def _collective(self, row: int) -> Iterator[tuple[str, str]]:
        if self._collectives is None:
            found = match(self._timeline).collectives
            self._collectives = {place: collective for collective in found for place in collective.rows}
        collective = self._collectives.get(row)
        if collective is None:
            return
        yield "collective", f"{collective.key}, number {collective.order}, on ranks {list(collective.ranks)}"
        if not collective.is_plausible:
            yield "waiting", "the clocks of the ranks do not compare"
            return
        mine = collective.ranks.index(int(self._timeline.rank[row]))
        waited = collective.waiting_ns[mine] / 1e3
        who = "this rank came last" if not waited else f"{waited:.3f} \u00b5s for rank {collective.last_rank}"
        yield "waiting", f"{who}; transfer {collective.transfer_ns / 1e3:.3f} \u00b5s"

    def _extent(self, row: int) -> Iterator[tuple[str, str]]:
        t = self._timeline
        if t.group[row] >= 0:
            group = t.groups[t.group[row]]
            yield "group", f"{group.name} {group.description}".strip()
        if t.elements_in[row] >= 0:
            kind = f" {t.strings[t.dtype[row]]}" if t.dtype[row] >= 0 else ""
            yield "elements", f"{t.elements_in[row]:,} in, {max(int(t.elements_out[row]), 0):,} out{kind}"
        if t.copied_bytes[row] >= 0:
            yield "bytes", f"{t.copied_bytes[row]:,}"
