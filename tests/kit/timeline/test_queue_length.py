import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.timeline.queue_length import queue_lengths, queues
from kit.timeline.read import read

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


def test_the_queue_grows_at_the_launch_and_shrinks_at_the_start(write: Write, span: Span) -> None:
    events = []
    for call, (launched, begun) in enumerate([(0, 10), (2, 20), (40, 39)], 1):  # the last before its launch
        events.append(span("cuda_runtime", "cudaLaunchKernel", launched, 1, correlation=call))
        events.append(span("kernel", "k", begun, 5, pid=0, tid=7, correlation=call, stream=7, device=0))
    timeline = read(write(events))
    [series] = queue_lengths(timeline)
    assert series.at_ns.tolist() == [0, 2_000, 10_000, 20_000, 40_000, 40_000]
    assert series.value.tolist() == [1, 2, 1, 0, 1, 0]
    [row] = queues(timeline)
    assert (row.events, row.longest) == (3, 2)
    assert row.mean == (1 * 2 + 2 * 8 + 1 * 10) / 40
    assert row.empty_share == 0.5


def test_no_queue_is_negative_where_older_tools_had_one(shared_data: Path) -> None:
    golden = json.loads((shared_data / "public/golden.json").read_text())["asserted_by_hta"]
    wanted = golden["hta/negative_queue_rank0.json.gz"]
    found = queue_lengths(read(shared_data / "public/hta/negative_queue_rank0.json.gz"))
    assert sum(int((series.value < 0).sum()) for series in found) == wanted["negative queue lengths"]
    assert len(found) == wanted["streams"]
    assert sum(len(series.value) for series in found) >= wanted["counter events at least"]
    assert all(series.value[-1] == 0 for series in found)
