"""Hand a Timeline to other tools: Chrome JSON for Perfetto and chrome://tracing, and a pandas frame.

Perfetto's lanes are threads of processes: here a process is a rank's host process or device, a thread is a thread or
a stream. Spans of a lane may only nest, and kernels of one stream may overlap a little (facts: 26 of 1838 in a DDP
capture), so what overlaps goes to a second lane of the same stream. Times are written as digits, microseconds with
three decimals after `baseTimeNanoseconds`, so nothing is rounded; `kit.read` of one rank's export gives the same
columns again.
"""

import gzip
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kit.timeline.exact import MOST_NS
from kit.timeline.memory_counters import device_name
from kit.timeline.record import DEVICE_CATEGORIES, LAUNCH_CATEGORIES, UNKNOWN_RANK, Category, Timeline

_CATEGORIES = {
    Category.KERNEL: "kernel", Category.MEMCPY: "gpu_memcpy", Category.MEMSET: "gpu_memset",
    Category.RUNTIME: "cuda_runtime", Category.DRIVER: "cuda_driver", Category.CPU_OP: "cpu_op",
    Category.ANNOTATION: "user_annotation", Category.GPU_ANNOTATION: "gpu_user_annotation",
    Category.PYTHON: "python_function", Category.OVERHEAD: "overhead", Category.SYNC: "cuda_sync",
    Category.OTHER: "other", Category.GRAPH: "gpu_graph",
}  # fmt: skip
_ARGS = (
    ("correlation", "correlation"), ("External id", "external"), ("Sequence number", "sequence"), ("device", "device"),
    ("stream", "stream"), ("bytes", "copied_bytes"), ("In msg nelems", "elements_in"),
    ("Out msg nelems", "elements_out"), ("graph id", "cuda_graph"), ("graph node id", "graph_node"),
)  # fmt: skip
_LINES_AT_ONCE = 20_000


def write_perfetto(timeline: Timeline, path: Path) -> Path:
    """Write all ranks to `path` (gzip when it ends in .gz) and return it; the file appears whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    ends = [
        int(at)
        for times in (timeline.start_ns, timeline.memory_at_ns)
        if len(times)
        for at in (times.min(), times.max())
    ]
    first, last = min(ends, default=0), max(ends, default=0)
    base_ns = first if last - first < MOST_NS else 0  # else the reader would refuse the last of them
    header: dict[str, Any] = {"displayTimeUnit": "ns", "baseTimeNanoseconds": base_ns, "traceName": path.name}
    if len(timeline.parts) == 1 and timeline.ranks[0] != UNKNOWN_RANK:
        part = timeline.parts[0]
        header["distributedInfo"] = {"rank": part.rank, "world_size": part.world_size, "backend": part.backend}
    try:
        with _opened(partial, is_packed=path.suffix == ".gz") as file:
            file.write(msgspec.json.encode(header)[:-1] + b', "traceEvents": [\n')
            lines = _lines(timeline, base_ns)
            before = b""
            while batch := list(islice(lines, _LINES_AT_ONCE)):
                file.write(before + ",\n".join(batch).encode())
                before = b",\n"
            file.write(b"\n]}\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _opened(path: Path, *, is_packed: bool) -> Any:
    return gzip.open(path, "wb", 6) if is_packed else path.open("wb")


def frame_of(timeline: Timeline) -> Any:
    """A `pandas.DataFrame` with one row an event: names, categories and lanes as pandas categories.

    Raises `ImportError` with the line that installs pandas.
    """
    try:
        pandas = import_module("pandas")
    except ImportError as error:
        raise ImportError(
            "to_pandas() needs pandas, which is not installed; install it with: pip install pandas"
        ) from error

    def texts(ids: NDArray[Any], table: list[str]) -> Any:
        unique = list(dict.fromkeys(table))
        moved = np.array([*(unique.index(text) for text in table), -1]) if len(unique) < len(table) else None
        return pandas.Categorical.from_codes(ids if moved is None else moved[ids], unique)

    lanes = timeline.lanes
    columns = {
        "rank": timeline.rank,
        "start_ns": timeline.start_ns,
        "duration_ns": timeline.duration_ns,
        "name": texts(timeline.name, list(timeline.strings)),
        "category": texts(timeline.category.astype(np.int32), [category.name.lower() for category in Category]),
        "pid": texts(timeline.lane, [lane.pid for lane in lanes]),
        "tid": texts(timeline.lane, [lane.tid for lane in lanes]),
        "group": texts(timeline.group, [group.name for group in timeline.groups]),
        "collective": texts(timeline.collective, list(timeline.strings)),
        "dtype": texts(timeline.dtype, list(timeline.strings)),
    }
    numbers = ("device", "stream", "correlation", "external", "sequence", "elements_in", "elements_out",
               "copied_bytes", "cuda_graph", "graph_node")  # fmt: skip
    return pandas.DataFrame(columns | {name: getattr(timeline, name) for name in numbers})


def _lines(timeline: Timeline, base_ns: int) -> Iterator[str]:
    threads = _threads(timeline)
    yield from _names(timeline, threads)
    yield from _spans(timeline, threads, base_ns)
    yield from _arrows(timeline, threads, base_ns)
    yield from _memory(timeline, base_ns)


def _memory(timeline: Timeline, base_ns: int) -> Iterator[str]:
    """Changes of the allocators as Kineto writes them, which `kit.read(memory=True)` reads again, and as counters."""
    columns = zip(
        timeline.memory_rank.tolist(), timeline.memory_device.tolist(), timeline.memory_lane.tolist(),
        timeline.memory_at_ns.tolist(), timeline.memory_changed_bytes.tolist(),
        timeline.memory_allocated_bytes.tolist(), timeline.memory_reserved_bytes.tolist(), strict=True,
    )  # fmt: skip
    processes = _processes(timeline)
    for rank, device, lane, at_ns, changed, allocated, reserved in columns:
        pid = processes[lane] if lane >= 0 else 0
        at = f'"ts": {_us(at_ns - base_ns)}'
        yield (
            f'{{"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": {pid}, "tid": {2 * lane}, '
            f'{at}, "args": {{"Device Type": {int(device >= 0)}, "Device Id": {device}, "Bytes": {changed}, '
            f'"Total Allocated": {allocated}, "Total Reserved": {reserved}}}}}'
        )
        yield (
            f'{{"ph": "C", "name": "memory of rank {rank}, {device_name(device)}", "pid": {pid}, {at}, '
            f'"args": {{"allocated": {allocated}, "reserved": {reserved}}}}}'
        )


def _threads(timeline: Timeline) -> NDArray[np.int64]:
    """The lane each row is drawn in, 2 * lane + 1 for what overlaps the row before it on its stream."""
    drawn = 2 * timeline.lane.astype(np.int64)
    rows = np.flatnonzero(np.isin(timeline.category, DEVICE_CATEGORIES))
    start, end = timeline.start_ns[rows], timeline.start_ns[rows] + timeline.duration_ns[rows]
    for lane in np.unique(timeline.lane[rows]).tolist():
        free = -(1 << 62)
        for at in np.flatnonzero(timeline.lane[rows] == lane).tolist():
            if start[at] < free:
                drawn[rows[at]] += 1
            else:
                free = int(end[at])
    return drawn


def _names(timeline: Timeline, threads: NDArray[np.int64]) -> Iterator[str]:
    """Metadata that names and orders processes and threads."""
    on_device = set(np.unique(timeline.lane[np.isin(timeline.category, DEVICE_CATEGORIES)]).tolist())
    processes = _processes(timeline)
    named: set[int] = set()
    for thread in np.unique(threads).tolist():
        lane, is_second = timeline.lanes[thread // 2], thread % 2
        pid = processes[thread // 2]
        rank = "rank ?" if lane.rank == UNKNOWN_RANK else f"rank {lane.rank}"
        is_device = thread // 2 in on_device
        if pid not in named:
            named.add(pid)
            name = f"{rank} device {lane.pid}" if is_device else f"{rank} host {lane.pid}"
            yield _meta("process_name", pid, 0, name=name)
            yield _meta("process_sort_index", pid, 0, sort_index=pid)
        thread_name = f"stream {lane.tid}" if is_device else f"thread {lane.tid}"
        yield _meta("thread_name", pid, thread, name=thread_name + (" (overlapping)" if is_second else ""))
        yield _meta("thread_sort_index", pid, thread, sort_index=thread)


def _meta(kind: str, pid: int, tid: int, **args: Any) -> str:
    return msgspec.json.encode({"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": args}).decode()


def _processes(timeline: Timeline) -> list[int]:
    """A number for each lane's process, ranks in order."""
    keys = sorted({(lane.rank, lane.pid) for lane in timeline.lanes})
    number = {key: at + 1 for at, key in enumerate(keys)}
    return [number[lane.rank, lane.pid] for lane in timeline.lanes]


def _spans(timeline: Timeline, threads: NDArray[np.int64], base_ns: int) -> Iterator[str]:
    names = [msgspec.json.encode(name).decode() for name in timeline.strings]
    categories = {int(category): name for category, name in _CATEGORIES.items()}
    processes = _processes(timeline)
    args = _arguments(timeline, names)
    columns = (timeline.name, timeline.category, timeline.lane, threads, timeline.start_ns, timeline.duration_ns)
    for row, (name, category, lane, thread, start, duration) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        yield (
            f'{{"ph": "X", "cat": "{categories[category]}", "name": {names[name]}, "pid": {processes[lane]}, '
            f'"tid": {thread}, "ts": {_us(start - base_ns)}, "dur": {_us(duration)}, "args": {{{args(row)}}}}}'
        )


def _arguments(timeline: Timeline, names: list[str]) -> Callable[[int], str]:
    """What stands between the braces of a row's args, under Kineto's names."""
    numbers = [(key, getattr(timeline, column)) for key, column in _ARGS]
    groups = [
        f'"Process Group Name": {msgspec.json.encode(group.name).decode()}, "Process Group Description": '
        f'{msgspec.json.encode(group.description).decode()}, "Process Group Ranks": {list(group.ranks)}'
        for group in timeline.groups
    ]

    def arguments(row: int) -> str:
        said = [f'"{key}": {values[row]}' for key, values in numbers if values[row] != -1]
        if timeline.collective[row] >= 0:
            said.append(f'"Collective name": {names[timeline.collective[row]]}')
        if timeline.dtype[row] >= 0:
            said.append(f'"dtype": {names[timeline.dtype[row]]}')
        if timeline.group[row] >= 0:
            said.append(groups[timeline.group[row]])
        return ", ".join(said)

    return arguments


def _arrows(timeline: Timeline, threads: NDArray[np.int64], base_ns: int) -> Iterator[str]:
    """An arrow from each launch call to each thing that it launched."""
    processes = _processes(timeline)
    has_id = timeline.correlation >= 0
    calls = np.flatnonzero(np.isin(timeline.category, LAUNCH_CATEGORIES) & has_id)
    keys = zip(timeline.rank[calls].tolist(), timeline.correlation[calls].tolist(), strict=True)
    call_of = dict(zip(keys, calls.tolist(), strict=True))
    for row in np.flatnonzero(np.isin(timeline.category, DEVICE_CATEGORIES) & has_id).tolist():
        call = call_of.get((int(timeline.rank[row]), int(timeline.correlation[row])))
        if call is not None:
            for end, ph in ((call, '"ph": "s"'), (row, '"ph": "f", "bp": "e"')):
                yield (
                    f'{{{ph}, "id": {row}, "cat": "ac2g", "name": "ac2g", "pid": {processes[timeline.lane[end]]}, '
                    f'"tid": {threads[end]}, "ts": {_us(int(timeline.start_ns[end]) - base_ns)}}}'
                )


def _us(nanoseconds: int) -> str:
    """Microseconds with three decimals, as digits."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
