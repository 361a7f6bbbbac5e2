import shutil
from pathlib import Path

import pytest

from kit.timeline import cache
from kit.timeline.read import read
from kit.timeline.record import COLUMNS, Timeline


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, for files of any size."""
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr("kit.timeline.kineto_file._LARGE_GZIP_BYTES", 0)
    return tmp_path / "kept"


@pytest.fixture
def trace(data: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(data / "gloo_ddp_rank1.json.gz", tmp_path / "rank1.json.gz"))


def same(left: Timeline, right: Timeline) -> bool:
    columns = all(getattr(left, column).tolist() == getattr(right, column).tolist() for column in COLUMNS)
    return columns and (left.parts, left.strings, left.notes) == (right.parts, right.strings, right.notes)


def test_a_trace_is_recalled_by_its_content_wherever_it_lies(
    home: Path, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read(trace)
    assert len(list(home.iterdir())) == 1
    moved = tmp_path / "elsewhere" / trace.name
    moved.parent.mkdir()
    trace.rename(moved)
    monkeypatch.setattr("kit.timeline.read.read_file", lambda *_, **__: pytest.fail("read again"))
    again = read(moved)
    assert again.sources == (str(moved),)
    assert again.strings == first.strings
    assert all(getattr(first, column).tolist() == getattr(again, column).tolist() for column in COLUMNS)


def test_a_trace_written_anew_is_read_anew(home: Path, trace: Path, data: Path) -> None:
    read(trace)
    shutil.copy(data / "gloo_functional_rank1.json.gz", trace)
    assert same(read(trace), read(trace, cache=False))
    assert len(list(home.iterdir())) == 2


def test_what_is_damaged_in_the_cache_is_read_again(home: Path, trace: Path) -> None:
    first = read(trace)
    [kept] = home.iterdir()
    for damage in (b"", b"PK\x03\x04 no zip", kept.read_bytes()[:-300]):
        kept.write_bytes(damage)
        assert same(read(trace), first)


@pytest.mark.parametrize("word", ["off", "0", "OFF"])
def test_the_cache_can_be_turned_off(home: Path, trace: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    read(trace, cache=False)
    monkeypatch.setenv("KIT_CACHE", word)
    read(trace)
    assert cache.folder() is None
    assert not home.exists()


def test_the_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KIT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "static-graph-kit" / "timelines"


def test_the_least_recently_used_go_first(home: Path, trace: Path) -> None:
    import os

    timeline = read(trace, cache=False)
    entries = [home / f"{name}.kit" for name in "abc"]
    for age, entry in enumerate(entries):
        cache.keep(timeline, entry)
        os.utime(entry, (1000 + age, 1000 + age))
    size = entries[0].stat().st_size
    cache.keep(timeline, home / "d.kit", max_bytes=2 * size + 10)
    assert sorted(entry.name for entry in home.iterdir()) == ["c.kit", "d.kit"]


def test_small_traces_are_not_kept(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "kept"))
    read(trace)
    assert not (tmp_path / "kept").exists()


def test_a_disk_that_cannot_be_written_is_no_reason_to_fail(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "file" / "kept"))
    monkeypatch.setattr("kit.timeline.kineto_file._LARGE_GZIP_BYTES", 0)
    assert len(read(trace)) > 0
