import gzip
from pathlib import Path

import pytest

from kit.timeline.error import TraceError
from kit.timeline.source import read_bytes


def test_a_gzip_file_is_known_by_its_first_bytes_not_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(b'{"a": 1}'))
    assert read_bytes(path) == (b'{"a": 1}', True)


def test_a_gzip_bomb_stops_at_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(bytes(64 << 20)))
    assert path.stat().st_size < 100_000
    with pytest.raises(TraceError) as caught:
        read_bytes(path, max_bytes=1 << 20)
    assert str(caught.value) == (
        f"{path}: unpacks to more than 1048576 bytes, expected at most that. "
        "If you trust the file, raise the bound with max_bytes="
    )


def test_a_plain_file_above_the_bound_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "big.json"
    path.write_bytes(b"x" * 101)
    assert read_bytes(path, max_bytes=101) == (b"x" * 101, True)
    with pytest.raises(TraceError, match="holds more than 100 bytes"):
        read_bytes(path, max_bytes=100)


def test_a_gzip_file_that_breaks_off_gives_its_beginning_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "cut.json.gz"
    text = b"".join(b"%d," % (i * i * 7919) for i in range(20000))
    path.write_bytes(gzip.compress(text)[:-20000])
    with pytest.raises(TraceError, match=r"cut\.json\.gz: gzip breaks off after \d+ unpacked bytes .* strict=False"):
        read_bytes(path)
    beginning, whole = read_bytes(path, strict=False)
    assert not whole
    assert len(beginning) > 1000
    assert text.startswith(beginning)


def test_a_file_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_bytes(tmp_path / "none.json")
