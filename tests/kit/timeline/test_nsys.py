import gzip
import json
import sqlite3
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.timeline.error import NoTraceError, TraceError
from kit.timeline.measure import breakdown
from kit.timeline.nsys import read_nsys
from kit.timeline.read import read
from kit.timeline.record import Category

EXPORTS = ("a100_cloverleaf", "rtx3060_2025_5")
KERNEL = ("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, globalPid, "
          "demangledName, shortName, graphNodeId, graphId)")  # fmt: skip
RUNTIME = "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId)"
NVTX = "CREATE TABLE NVTX_EVENTS (start, end, globalTid, text, textId)"
STRINGS = ("void k<int>(int)", "k", "cudaLaunchKernel_v7000", "cuLaunchKernel", "ncclDevKernel_AllReduce", "step")


def export(path: Path, *tables: tuple[str, list[tuple[object, ...]]], epoch: int = 1_000_000) -> Path:
    """A small database in Nsight's layout; strings are numbered from 1."""
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(STRINGS, 1))
        database.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)")
        database.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?)", (epoch,))
        for sql, rows in tables:
            database.execute(sql)
            name = sql.split()[2]
            database.executemany(f"INSERT INTO {name} VALUES ({','.join('?' * len(rows[0]))})", rows)
    database.close()
    return path


def kernel(
    start: object, end: object, *, device: int = 0, process: int = 5, name: int = 1, graph: object = None
) -> tuple[object, ...]:
    return (start, end, device, 7, 11, process << 24, name, 2, None if graph is None else 40, graph)


@pytest.mark.parametrize("name", EXPORTS)
def test_real_exports_have_their_golden_values(shared_data: Path, name: str) -> None:
    folder = shared_data / "public" / "nsys"
    golden = json.loads((folder / "golden.json").read_text())[name]
    timeline = read(folder / f"{name}.sqlite.gz")
    count = Counter(timeline.category.tolist())
    assert (count[Category.KERNEL], count[Category.MEMCPY], count[Category.MEMSET], count[Category.GRAPH]) == (
        golden["kernels"], golden["copies"], golden["sets"], golden["graph_launches"],
    )  # fmt: skip
    assert count[Category.RUNTIME] + count[Category.DRIVER] == golden["runtime_calls"]
    [row] = breakdown(timeline)
    graphs = timeline.duration_ns[timeline.category == Category.GRAPH]
    assert int(graphs.sum()) == golden["graph_ns"]
    assert (row.window_ns, row.busy_ns) == (golden["window_ns"], golden["busy_ns"])
    assert row.compute_ns == golden["compute_ns"] + golden["graph_ns"]  # a graph hides its kernels
    device = np.isin(timeline.category, (Category.KERNEL, Category.MEMCPY, Category.GRAPH))
    assert np.unique(timeline.stream[device]).tolist() == golden["streams"]
    for short, launches, nanoseconds in golden["top_kernels"]:
        rows = (timeline.category == Category.KERNEL) & np.array([short in timeline.strings[i] for i in timeline.name])
        assert (int(rows.sum()), int(timeline.duration_ns[rows].sum())) == (launches, nanoseconds)


def test_launches_and_kernels_of_a_real_export_share_their_correlation(shared_data: Path) -> None:
    timeline = read(shared_data / "public" / "nsys" / "rtx3060_2025_5.sqlite.gz")
    names = [timeline.strings[i] for i in timeline.name]
    launches = {int(timeline.correlation[i]): name for i, name in enumerate(names) if name.startswith("cuda")}
    kernels = [int(timeline.correlation[i]) for i, name in enumerate(names) if name.startswith("add_one")]
    graphs = np.flatnonzero(timeline.category == Category.GRAPH)
    assert {launches[number] for number in kernels} == {"cudaLaunchKernel"}
    assert {launches[int(timeline.correlation[row])] for row in graphs} == {"cudaGraphLaunch"}
    assert timeline.cuda_graph[graphs].tolist() == [1, 1]
    assert "Memcpy HtoD (Pageable -> Device)" in names
    assert any("recorded without their kernels and count as compute" in note for note in timeline.notes)


def test_rows_become_what_kineto_would_have_written(tmp_path: Path) -> None:
    path = export(
        tmp_path / "rank3.sqlite",
        (KERNEL, [kernel(10, 30), kernel(40, 45, name=5, graph=9)]),
        (RUNTIME, [(1, 4, (5 << 24) + 77, 11, 3), (5, 6, (5 << 24) + 77, 12, 4)]),
        (
            NVTX,
            [(0, 50, (5 << 24) + 77, "forward", None), (0, 60, (5 << 24) + 77, None, 6), (3, None, 0, "mark", None)],
        ),
    )
    timeline = read(path)
    assert timeline.ranks == (3,)
    seen = [
        (timeline.strings[n], int(c), timeline.lanes[lane].pid, timeline.lanes[lane].tid, int(s) - 1_000_000, int(d))
        for n, c, lane, s, d in zip(
            timeline.name, timeline.category, timeline.lane, timeline.start_ns, timeline.duration_ns, strict=True
        )
    ]
    assert seen == [
        ("step", Category.ANNOTATION, "5", "77", 0, 60),
        ("forward", Category.ANNOTATION, "5", "77", 0, 50),
        ("cudaLaunchKernel", Category.RUNTIME, "5", "77", 1, 3),
        ("cuLaunchKernel", Category.DRIVER, "5", "77", 5, 1),
        ("void k<int>(int)", Category.KERNEL, "0", "7", 10, 20),
        ("ncclDevKernel_AllReduce", Category.KERNEL, "0", "7", 40, 5),
    ]
    assert timeline.cuda_graph.tolist() == [-1, -1, -1, -1, -1, 9]
    assert timeline.graph_node.tolist() == [-1, -1, -1, -1, -1, 40]
    assert breakdown(timeline)[0].communication_ns == 5


def test_processes_become_ranks_in_order_of_device(tmp_path: Path) -> None:
    path = export(
        tmp_path / "job.sqlite",
        (KERNEL, [kernel(10, 30, device=1, process=5), kernel(10, 20, device=0, process=9)]),
        (RUNTIME, [(1, 4, 5 << 24, 11, 3), (1, 3, 9 << 24, 11, 3), (1, 2, 4 << 24, 11, 3)]),
    )
    timeline = read(path)
    assert timeline.ranks == (0, 1)
    assert [row.compute_ns for row in breakdown(timeline)] == [10, 20]
    assert len(timeline) == 4
    assert any("processes with device work are taken as ranks 0 to 1 in order of device" in n for n in timeline.notes)
    assert any("1 rows of processes without device work were left out" in note for note in timeline.notes)


@pytest.mark.parametrize("bad", [("x", 5), (None, 5), (5, 4), (1.5, 3), (5, 1 << 62)])
def test_a_row_without_usable_times_is_refused_with_its_place_or_dropped(
    tmp_path: Path, bad: tuple[object, object]
) -> None:
    path = export(tmp_path / "rank0.sqlite", (KERNEL, [kernel(1, 2), kernel(*bad)]))
    with pytest.raises(TraceError) as caught:
        read(path)
    assert str(caught.value) == (
        f"{path}: table CUPTI_ACTIVITY_KIND_KERNEL, row 2: start {bad[0]!r}, end {bad[1]!r}; expected whole "
        "nanoseconds within 146 years with end >= start. strict=False reads the others"
    )
    timeline = read(path, strict=False)
    assert (len(timeline), timeline.parts[0].dropped) == (1, 1)


def test_a_database_of_something_else_and_an_old_layout_say_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    sqlite3.connect(path).execute("CREATE TABLE people (name)").connection.close()
    with pytest.raises(NoTraceError, match=r"other\.sqlite: is a database without StringIds .* Nsight Systems"):
        read(path)
    old = export(tmp_path / "old.sqlite", ("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end)", [(1, 2)]))
    with pytest.raises(TraceError, match="table CUPTI_ACTIVITY_KIND_KERNEL has no column demangledName, shortName"):
        read(old)


def test_a_view_in_place_of_a_table_is_not_read(tmp_path: Path) -> None:
    path = export(tmp_path / "rank0.sqlite", (NVTX, [(0, 1, 0, "a", None)]))
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
            "SELECT x AS start, x AS end, x AS demangledName, x AS shortName FROM n"
        )
    database.close()
    assert len(read(path)) == 1


def test_a_long_text_that_many_rows_name_is_cut(tmp_path: Path) -> None:
    path = export(tmp_path / "rank0.sqlite", (KERNEL, [kernel(at, at + 1) for at in range(1000)]))
    with sqlite3.connect(path) as database:
        database.execute("UPDATE StringIds SET value = hex(zeroblob(1000000)) WHERE id = 1")  # 2 GB, a copy a row
    database.close()
    assert set(map(len, read(path).strings)) == {1 << 14}


def test_what_sqlite_says_of_bytes_that_are_no_text_is_one_error(tmp_path: Path) -> None:
    path = export(tmp_path / "rank0.sqlite", (KERNEL, [kernel(1, 2)]))
    damaged = (
        path.read_bytes().replace(b"tableTARGET_INFO", b"tableTARGET_\xaeNFO").replace(b"BLE TARGET", b"BXE TARGET")
    )
    path.write_bytes(damaged)
    with pytest.raises(TraceError, match=r"rank0\.sqlite: .* Nsight Systems"):
        read(path)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.data())
def test_a_damaged_export_is_read_or_refused(tmp_path: Path, shared_data: Path, draw: st.DataObject) -> None:
    raw = bytearray(gzip.decompress((shared_data / "public" / "nsys" / "rtx3060_2025_5.sqlite.gz").read_bytes()))
    for _ in range(draw.draw(st.integers(1, 6))):
        raw[draw.draw(st.integers(0, len(raw) - 1) | st.integers(0, 4096))] = draw.draw(st.integers(0, 255))
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(raw[: draw.draw(st.sampled_from([len(raw), 5000, 100]))])
    for strict in (True, False):
        try:
            breakdown(read_nsys(path, strict=strict))
        except TraceError as error:
            assert str(error).startswith(str(path))
