"""Join what ran on a device to the host's call that launched it, and count launches.

One call may launch many events (a CUDA graph: 1030 under one correlation in this project's own capture), so the join
is many to one through sorted correlations. Device events without a call were launched before the file begins: they
are counted as orphans, stay in every measure of time, and are left out of everything here that needs the launch.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kit.timeline.kinds import device_rows, rows_named
from kit.timeline.record import LAUNCH_CATEGORIES, Timeline
from kit.timeline.rows import Measured

GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")
# Outliers as HolisticTraceAnalysis counts them (its defaults): a call over 50 us, a delay over 100 us.
SLOW_CALL_NS, LONG_DELAY_NS = 50_000, 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRow:
    """Launches of one kind of call on one rank.

    `calls` launched `events` on the device (a graph replay launches many). `call_ns` is the time inside the calls.
    Delay is device start - end of the call (negative when the device began before the call returned), taken at the
    first event of each call. `short`: events that ran shorter than their call took. `slow_calls` took over 50 us,
    `long_delays` are over 100 us.
    """

    rank: int
    call: str
    calls: int
    events: int
    call_ns: int
    median_call_ns: int
    median_delay_ns: int
    longest_delay_ns: int
    short: int
    slow_calls: int
    long_delays: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRow:
    """What a rank's file does not hold whole.

    `orphans`: device events without a launch call. `unlaunched`: graph or kernel launch calls without a device event,
    which the profiler cut off. `overlapping`: device events that begin before an earlier one of their stream ended.
    `dropped` events could not be read, `mended` names were repaired.
    """

    rank: int
    device_events: int
    orphans: int
    unlaunched: int
    overlapping: int
    overlapping_ns: int
    dropped: int
    mended: int


@lru_cache(maxsize=2)  # many measures ask; two, because comparisons hold two timelines
def launch_of(timeline: Timeline) -> NDArray[np.int64]:
    """For each row the row of the call that launched it; -1 for rows of the host and for orphans."""
    found = np.full(len(timeline), -1, np.int64)
    is_device, is_call = device_rows(timeline), np.isin(timeline.category, LAUNCH_CATEGORIES)
    is_joined = timeline.correlation >= 0
    for rank in timeline.ranks:
        rows = np.arange(len(timeline))[timeline.rows_of(rank)]
        device, call = rows[(is_device & is_joined)[rows]], rows[(is_call & is_joined)[rows]]
        if not len(device) or not len(call):
            continue
        call = call[np.argsort(timeline.correlation[call], kind="stable")]
        ids = timeline.correlation[call]
        place = np.minimum(np.searchsorted(ids, timeline.correlation[device]), len(call) - 1)
        found[device] = np.where(ids[place] == timeline.correlation[device], call[place], -1)
    found.flags.writeable = False
    return found


def launch_delay_ns(timeline: Timeline) -> NDArray[np.int64]:
    """For each row device start - end of its launch call; 0 where there is no launch."""
    launch = launch_of(timeline)
    ended = timeline.start_ns[launch] + timeline.duration_ns[launch]
    return np.where(launch >= 0, timeline.start_ns - ended, 0)


def is_replayed(timeline: Timeline) -> NDArray[np.bool_]:
    """For each row whether a replay of a CUDA graph launched it."""
    launch = launch_of(timeline)
    graph = rows_named(timeline, (name.startswith(GRAPH_LAUNCHES) for name in timeline.strings))
    return (launch >= 0) & graph[launch]


def launches(timeline: Timeline) -> Measured[LaunchRow]:
    """Launch statistics for each rank and kind of call, most calls first. Source: the definition in the row's words."""
    launch, delay = launch_of(timeline), launch_delay_ns(timeline)
    rows: list[LaunchRow] = []
    for rank in timeline.ranks:
        device = np.arange(len(timeline))[timeline.rows_of(rank)]
        device = device[launch[device] >= 0]
        calls, first = np.unique(launch[device], return_index=True)
        names = timeline.name[calls]
        found = []
        for name in np.unique(names).tolist():
            mine, firsts = calls[names == name], device[first[names == name]]
            events = device[np.isin(launch[device], mine)]
            took, waited = timeline.duration_ns[mine], delay[firsts]
            found.append(
                LaunchRow(
                    rank=rank,
                    call=timeline.strings[name],
                    calls=len(mine),
                    events=len(events),
                    call_ns=int(took.sum()),
                    median_call_ns=int(np.median(took)),
                    median_delay_ns=int(np.median(waited)),
                    longest_delay_ns=int(waited.max()),
                    short=int((timeline.duration_ns[events] < timeline.duration_ns[launch[events]]).sum()),
                    slow_calls=int((took > SLOW_CALL_NS).sum()),
                    long_delays=int((waited > LONG_DELAY_NS).sum()),
                )
            )
        rows += sorted(found, key=lambda row: -row.calls)
    return Measured(name="launches", rows=tuple(rows), notes=_notes(timeline))


def losses(timeline: Timeline) -> Measured[LossRow]:
    """Orphans, cut-off launches, overlaps on a stream and dropped events of each rank."""
    launch, is_device = launch_of(timeline), device_rows(timeline)
    starts_work = rows_named(timeline, (_starts_work(name) for name in timeline.strings))
    starts_work &= np.isin(timeline.category, LAUNCH_CATEGORIES)
    rows = []
    for part in timeline.parts:
        mine = np.arange(len(timeline))[timeline.rows_of(part.rank)]
        device = mine[is_device[mine]]
        calls = mine[starts_work[mine]]
        overlaps = _overlaps_ns(timeline, device)
        rows.append(
            LossRow(
                rank=part.rank,
                device_events=len(device),
                orphans=int((launch[device] < 0).sum()),
                unlaunched=int((~np.isin(calls, launch[device])).sum()),
                overlapping=int((overlaps > 0).sum()),
                overlapping_ns=int(overlaps.sum()),
                dropped=part.dropped,
                mended=part.mended,
            )
        )
    return Measured(name="losses", rows=tuple(rows))


def _starts_work(name: str) -> bool:
    return "Launch" in name and not name.startswith(("cudaLaunchHostFunc", "cuLaunchHostFunc"))


def _overlaps_ns(timeline: Timeline, device: NDArray[np.int64]) -> NDArray[np.int64]:
    """How long each event ran together with earlier ones of its stream."""
    found = [np.empty(0, np.int64)]
    place = np.stack([timeline.device[device].astype(np.int64), timeline.stream[device]])
    for column in np.unique(place, axis=1).T:
        rows = device[(place == column[:, None]).all(axis=0)]
        start, end = timeline.start_ns[rows], timeline.start_ns[rows] + timeline.duration_ns[rows]
        reach = np.maximum.accumulate(end)[:-1]
        found.append(np.clip(np.minimum(reach, end[1:]) - start[1:], 0, None))
    return np.concatenate(found)


def _notes(timeline: Timeline) -> tuple[str, ...]:
    orphans = int((device_rows(timeline) & (launch_of(timeline) < 0)).sum())
    if not orphans:
        return ()
    return (f"{orphans} device events have no launch call in the file (launched before it began) and are not counted",)
