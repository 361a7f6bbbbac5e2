"""Records survive a file; a file that is none is one clear error."""

import json
import zipfile

import numpy as np
import pytest

from kit.archive import RECORDS, ArchiveError, load, save
from kit.comparison import differences
from kit.graph.record import Graph, Kind, Phase
from kit.step.record import Plan, Send
from kit.tuning.record import Measurement, Setting, TuneReport


def small_graph(name="g"):
    return Graph(
        name=name, names=("x", "y"), targets=("x", "aten.relu.default"), kinds=(Kind.INPUT, Kind.COMPUTE),
        phases=(Phase.FORWARD, Phase.FORWARD), modules=("", "act"), sources=("", "m.py:3: relu(x)"),
        shapes=("float32[2]", "float32[2]"), groups=("", ""), parameter=("", ""), bytes_out=np.array([8, 8]),
        bytes_moved=np.array([0, 16]), flops=np.array([0.0, 2.0]), storage=np.array([0, 1], np.int32),
        mutates=np.array([-1, -1], np.int32), edge_from=np.array([0], np.int32), edge_to=np.array([1], np.int32),
    )  # fmt: skip


def plan():
    send = Send(
        name="all_reduce", phase="backward", group="0", bytes_in=8, dtype="float32", nodes_before=1, nodes_hiding=0,
        module="act", source="m.py:3: relu(x)",
    )  # fmt: skip
    return Plan(
        strategy="DDP()", world_size=2, passes=("bucket",), micro_batch_rows=(4, 2), sends=(send,), node_count=2,
        parameter_bytes=8, state_bytes=0, unused=(),
    )  # fmt: skip


def report():
    run = Measurement(
        setting=Setting(micro_batch=1, accumulation=2), seconds_per_step=0.5, samples_per_second=4.0, peak_bytes=7,
        peak_method="measured",
    )  # fmt: skip
    return TuneReport(global_batch=2, world_size=1, measurements=(run,))


@pytest.mark.parametrize("record", [small_graph(), plan(), report()], ids=lambda r: type(r).__name__)
def test_a_record_comes_back_as_it_was(tmp_path, record):
    again = load(save(record, tmp_path / "record.kit"))
    assert type(again) is type(record)
    assert differences(record, again) == ()


def test_every_record_of_the_kit_can_be_loaded():
    import importlib

    for kind, module in RECORDS.items():
        assert hasattr(importlib.import_module(module), kind)


def test_saving_something_else_lists_the_records(tmp_path):
    with pytest.raises(TypeError, match=r"save\(\) got a dict; it takes a record: Graph, Plan"):
        save({}, tmp_path / "x")


def test_a_file_that_is_no_archive_is_named(tmp_path):
    path = tmp_path / "x.kit"
    path.write_text("hello")
    with pytest.raises(ArchiveError, match=r"x\.kit: not a zip archive .*; expected a file written by kit\.save"):
        load(path)


def rewritten(path, change):
    """The archive at `path` with its header changed."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(entries["header.json"])
    change(header)
    entries["header.json"] = json.dumps(header).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda h: h.update(format=9), "format 9, this version reads format 1; update the kit"),
        (lambda h: h.update(kind="os.system"), "holds a 'os.system', expected one of Graph"),
        (lambda h: h["fields"].update(names=[1, 2]), r"field 'names': Expected `str`, got `int`"),
        (lambda h: h["fields"].update(extra=1), "field 'extra' is not of a Graph"),
        (lambda h: h["columns"].append("more"), r"more\.npy is missing, the header names it"),
        (lambda h: h["fields"].pop("names"), "the fields do not make a Graph"),
        (lambda h: h["fields"].update(names=["x"]), "expected 1 .one a node"),
    ],
)
def test_a_changed_header_is_one_error_with_its_place(tmp_path, change, said):
    path = rewritten(save(small_graph(), tmp_path / "g.kit"), change)
    with pytest.raises(ArchiveError, match=said):
        load(path)


def test_a_pickled_column_is_refused(tmp_path):
    path = save(small_graph(), tmp_path / "g.kit")
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    import io

    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    entries["flops.npy"] = buffer.getvalue()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with pytest.raises(ArchiveError, match=r"flops\.npy: Object arrays cannot be loaded"):
        load(path)


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = save(small_graph("old"), tmp_path / "g.kit")

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        save(small_graph("new"), path)
    assert load(path).name == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_differences_name_the_field_and_the_first_row():
    (name, flops) = differences(small_graph("a"), small_graph_with_flops(3.0))
    assert (name.field, name.left, name.right) == ("name", "a", "b")
    assert flops.field == "flops"
    assert "sum 2" in flops.left
    assert "sum 3" in flops.right


def small_graph_with_flops(flops):
    import dataclasses

    return dataclasses.replace(small_graph("b"), flops=np.array([0.0, flops]))


def test_two_kinds_cannot_be_compared():
    with pytest.raises(TypeError, match="got a Graph and a Plan; expected two records of one kind"):
        differences(small_graph(), plan())
