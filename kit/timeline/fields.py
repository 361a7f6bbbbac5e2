"""Columns of what a batch of events says: ids for text, whole numbers, what collectives and devices add.

Most fields of most batches say nothing, so a whole column is first asked whether it does; that is what keeps the cost
of an event below a microsecond.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from kit.timeline.exact import as_int
from kit.timeline.kineto import WHOLE_PROFILE, Args
from kit.timeline.record import DEVICE_CATEGORIES, Category, Group

# Spellings of torch 1.x beside today's; a category outside the table is OTHER.
_CATEGORIES = {
    "kernel": Category.KERNEL, "Kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY, "Memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET, "Memset": Category.MEMSET,
    "cuda_runtime": Category.RUNTIME, "Runtime": Category.RUNTIME, "runtime": Category.RUNTIME,
    "cuda_driver": Category.DRIVER,
    "cpu_op": Category.CPU_OP, "Operator": Category.CPU_OP,
    "user_annotation": Category.ANNOTATION, "User Annotation": Category.ANNOTATION,
    "gpu_user_annotation": Category.GPU_ANNOTATION,
    "python_function": Category.PYTHON,
    "overhead": Category.OVERHEAD,
    "cuda_sync": Category.SYNC,
    "gpu_graph": Category.GRAPH,  # the kit's own export of one
}  # fmt: skip
_OLD_PROCESSES = {"CPU functions": Category.CPU_OP, "CUDA functions": Category.KERNEL}
WHOLE_PROFILE_CODE = 254  # no event, so no category of a Timeline
_BY_PROCESS = 255  # torch 1.x: no category, the process tells
_NUMBERS = ("correlation", "external", "sequence", "elements_in", "elements_out", "copied_bytes")
_PLACES = (("device", "device"), ("stream", "stream"), ("cuda_graph", "graph"), ("graph_node", "node"))
IS_DEVICE = np.isin(np.arange(256), DEVICE_CATEGORIES)

Values = Sequence[Any]
Numbers = Callable[[Values], NDArray[np.int64]]  # whole numbers of a column of values


class Ids(dict[Any, int]):
    """Text (or any hashable) to small ids, in order of first use; looking a key up gives it an id."""

    def __missing__(self, key: Any) -> int:
        self[key] = found = len(self)
        return found

    def of(self, keys: Collection[Any]) -> NDArray[np.int32]:
        """The id of each key; new keys get the next id."""
        return np.fromiter(map(self.__getitem__, keys), np.int32, len(keys))


class Lanes(dict[tuple[Any, Any], int]):
    """(pid, tid) as a file writes them to the id of the lane that their texts name."""

    def __init__(self) -> None:
        super().__init__()
        self.texts = Ids()

    def __missing__(self, key: tuple[Any, Any]) -> int:
        # Floats are not kept: 1.0 equals 1 and would take its lane.
        lane = self.texts[(str(key[0]), str(key[1]))]
        if float not in (type(key[0]), type(key[1])):
            self[key] = lane
        return lane


class _Codes(dict[Any, int]):
    """The spelling of a category to its number, or to one of the two codes above."""

    def __missing__(self, cat: Any) -> int:
        code = int(_CATEGORIES.get(cat, Category.OTHER)) if cat else _BY_PROCESS
        self[cat] = code = WHOLE_PROFILE_CODE if cat == WHOLE_PROFILE else code
        return code


class _Groups(Ids):
    """Process groups to ids; a group that is written the same way is made once."""

    def __init__(self) -> None:
        super().__init__()
        self._written: dict[tuple[Any, ...], int] = {}

    def written(self, name: Any, description: Any, ranks: Any) -> int:
        """The id of the group that an event's arguments name."""
        key = (name, description, ranks)
        if not all(type(part) is str for part in key):  # 1 equals 1.0 and True, and lists are no keys
            return self[_group(*key)]
        found = self._written.get(key)
        if found is None:
            found = self._written[key] = self[_group(*key)]
        return found


class Tables:
    """The tables of ids of one file, and the columns that point into them."""

    def __init__(self) -> None:
        self.names, self.collectives, self.dtypes, self.groups = Ids(), Ids(), Ids(), _Groups()
        self.lanes = Lanes()
        self._codes = _Codes()

    def columns(self, spans: list[Any], category: NDArray[np.uint8], numbers: Numbers) -> dict[str, NDArray[Any]]:
        """Every column of spans but their times; `numbers` makes whole numbers of what their arguments hold."""
        args = zip(*map(astuple, [span.args for span in spans]), strict=True)
        said: dict[str, Values] = dict(zip(Args.__struct_fields__, args, strict=True))
        places = zip([span.pid for span in spans], [span.tid for span in spans], strict=True)
        return {
            "name": self.names.of([span.name for span in spans]),
            "category": category,
            "lane": np.fromiter(map(self.lanes.__getitem__, places), np.int32, len(spans)),
            **{field: numbers(said[field]) for field in _NUMBERS},
            **self._collective(said),
            **_places(category, said, numbers),
        }

    def categories(self, spans: list[Any]) -> NDArray[np.uint8]:
        """The category of each span, `WHOLE_PROFILE_CODE` for what is none."""
        codes = np.fromiter(map(self._codes.__getitem__, [span.cat for span in spans]), np.uint8, len(spans))
        for row in np.flatnonzero(codes == _BY_PROCESS).tolist():
            codes[row] = _OLD_PROCESSES.get(str(spans[row].pid), Category.OTHER)
        return codes

    def _collective(self, said: dict[str, Values]) -> dict[str, NDArray[np.int32]]:
        """What collectives say of themselves; few events do."""
        rows = _filled([said[name] for name in ("group_name", "collective", "dtype")])
        found = {name: np.full(len(said["dtype"]), -1, np.int32) for name in ("collective", "dtype", "group")}
        for name, ids in (("collective", self.collectives), ("dtype", self.dtypes)):
            texts = [(row, said[name][row]) for row in rows]
            texts = [(row, text) for row, text in texts if isinstance(text, str) and text]
            found[name][[row for row, _ in texts]] = ids.of([text for _, text in texts])
        names, descriptions, ranks = said["group_name"], said["group_description"], said["group_ranks"]
        grouped = [row for row in rows if names[row] is not None]
        found["group"][grouped] = [self.groups.written(names[row], descriptions[row], ranks[row]) for row in grouped]
        return found


def _filled(columns: list[Values]) -> list[int]:
    """Rows where any of the columns is not None; where one is, most often all are."""
    rows: set[int] = set()
    for values in columns:
        if len(values) - values.count(None) != sum(values[row] is not None for row in rows):
            rows.update(row for row, value in enumerate(values) if value is not None)
    return sorted(rows)


def _places(category: NDArray[np.uint8], said: dict[str, Values], numbers: Numbers) -> dict[str, NDArray[Any]]:
    """Device, stream and CUDA graph of device events; -1 elsewhere (launch calls of ROCm name a stream's address)."""
    rows = np.flatnonzero(IS_DEVICE[category])
    found: dict[str, NDArray[Any]] = {}
    for name, field in _PLACES:
        found[name] = column = np.full(len(category), -1, np.int64)
        if len(rows):
            values = said[field]
            column[rows] = numbers([values[row] for row in rows.tolist()])
    for name in ("cuda_graph", "graph_node"):
        found[name][found[name] == 0] = -1  # CUPTI's "in no graph"
    device = found["device"]
    found["device"] = np.where(np.abs(device) < 1 << 31, device, -1).astype(np.int32)
    return found


def _group(name: Any, description: Any, ranks: Any) -> Group:
    return Group(name=str(name), description=str(description or ""), ranks=members(ranks))


def members(ranks: Any) -> tuple[int, ...]:
    """Members of a group: a list, or the text of one; () when unknown or shortened with dots."""
    if isinstance(ranks, str):
        try:
            ranks = msgspec.json.decode(ranks)
        except (msgspec.DecodeError, RecursionError):
            return ()
    if not isinstance(ranks, list):
        return ()
    found = tuple(as_int(rank) for rank in ranks)
    return found if all(member >= 0 for member in found) else ()
