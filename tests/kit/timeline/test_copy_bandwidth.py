import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kit.timeline.copy_bandwidth import copies, copy_bandwidth
from kit.timeline.read import read

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


def copy(span: Span, name: str, start: int, took: int, moved: int | None) -> dict[str, Any]:
    args = {} if moved is None else {"bytes": moved}
    return span("gpu_memcpy", name, start, took, pid=0, tid=7, stream=7, device=0, **args)


def test_bandwidth_is_bytes_over_time_and_adds_up_where_copies_overlap(write: Write, span: Span) -> None:
    events = [
        copy(span, "Memcpy HtoD (Pageable -> Device)", 0, 10, 100_000),
        copy(span, "Memcpy HtoD (Pinned -> Device)", 5, 10, 50_000),
        copy(span, "Memcpy DtoH (Device -> Pinned)", 0, 10, None),
    ]
    timeline = read(write(events))
    there, back = copies(timeline)
    assert (there.kind, there.copies, there.pageable, there.moved_bytes) == ("Memcpy HtoD", 2, 1, 150_000)
    assert (there.mean_gbps, there.median_gbps, there.fastest_gbps) == (7.5, 7.5, 10.0)
    assert (back.kind, back.mean_gbps) == ("Memcpy DtoH", None)
    series = next(series for series in copy_bandwidth(timeline) if series.kind == "Memcpy HtoD")
    assert series.at_ns.tolist() == [0, 5_000, 10_000, 15_000]
    assert np.allclose(series.gbps, [10, 15, 5, 0])


def test_kinds_and_signs_are_those_that_hta_asserts(shared_data: Path) -> None:
    golden = json.loads((shared_data / "public/golden.json").read_text())["asserted_by_hta"]
    wanted = golden["hta/negative_queue_rank0.json.gz"]
    timeline = read(shared_data / "public/hta/negative_queue_rank0.json.gz")
    assert len(copies(timeline)) == wanted["copy kinds"]
    assert {row.kind for row in copies(timeline)} == set(wanted["counter names"]) - {"Queue Length"}
    assert sum(int((series.gbps < 0).sum()) for series in copy_bandwidth(timeline)) == wanted["negative bandwidths"]
