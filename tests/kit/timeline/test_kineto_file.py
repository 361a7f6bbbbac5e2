import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.timeline.error import TraceError
from kit.timeline.kineto_file import Mode, read_kineto
from kit.timeline.read import read
from kit.timeline.record import COLUMNS
from kit.timeline.source import Stream

Span = Callable[..., dict[str, Any]]
Write = Callable[..., Path]
BOTH: list[Mode] = ["whole", "chunked"]


def test_both_modes_give_the_same_timeline(data: Path) -> None:
    path = data / "h200_ddp_eager_rank0.json.gz"
    whole, chunked = (read_kineto(path, mode=mode) for mode in BOTH)
    assert all((getattr(whole, column) == getattr(chunked, column)).all() for column in COLUMNS)
    assert (whole.parts, whole.strings, whole.lanes, whole.groups, whole.notes) == (
        chunked.parts, chunked.strings, chunked.lanes, chunked.groups, chunked.notes,
    )  # fmt: skip


def test_another_mode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^mode 'fast'; expected one of 'auto', 'whole', 'chunked'$"):
        read([], mode="fast")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", BOTH)
def test_a_bomb_stops_at_the_bound_in_both_modes(tmp_path: Path, mode: Mode) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + bytes(64 << 20)))
    with pytest.raises(TraceError, match=r"bomb\.json\.gz: unpacks to more than 4194304 bytes"):
        read(path, mode=mode, max_bytes=4 << 20)


@pytest.mark.parametrize("mode", BOTH)
def test_a_gzip_that_breaks_off_is_refused_or_read_to_the_break_in_both_modes(
    data: Path, tmp_path: Path, mode: Mode
) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes((data / "h200_ddp_eager_rank0.json.gz").read_bytes()[:300_000])
    with pytest.raises(TraceError, match=r"rank0\.json\.gz: gzip breaks off after \d+ unpacked bytes"):
        read(path, mode=mode)
    timeline = read(path, mode=mode, strict=False)
    assert 1000 < len(timeline) < 16645
    assert any("the gzip stream breaks off" in note for note in timeline.notes)


@pytest.mark.parametrize("mode", BOTH)
def test_a_name_that_is_no_json_is_mended_in_both_modes(write: Write, span: Span, mode: Mode) -> None:
    path = write([span("cpu_op", "say QUOTE it", at, 1) for at in range(50)])
    path.write_text(path.read_text().replace("QUOTE", '"it"'))
    timeline = read(path, mode=mode)
    assert timeline.parts[0].mended == 50
    assert timeline.strings == ('say "it" it',)


@pytest.mark.parametrize("mode", BOTH)
def test_a_span_without_a_usable_time_is_refused_with_its_place_or_dropped(
    write: Write, span: Span, mode: Mode
) -> None:
    path = write([span("cpu_op", "a", at, -(10**30) if at == 30 else 1) for at in range(50)])
    with pytest.raises(TraceError, match=r"span 30 \('a'\) has ts 30"):
        read(path, mode=mode)
    assert (len(read(path, mode=mode, strict=False)), read(path, mode=mode, strict=False).parts[0].dropped) == (49, 1)


def test_progress_is_told_while_a_file_is_read(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    clock = iter(range(0, 10_000, 2))
    monkeypatch.setattr("kit.timeline.source.time.monotonic", lambda: float(next(clock)))
    read_kineto(data / "h200_ddp_eager_rank0.json.gz", mode="chunked", report=told.append)
    assert told[0] == "h200_ddp_eager_rank0.json.gz: 1 MB"
    assert told[-1] == "h200_ddp_eager_rank0.json.gz: 8 MB"


def test_the_text_is_never_held_whole_in_pieces(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    fill = Stream.readinto
    monkeypatch.setattr(Stream, "readinto", lambda self, buffer: asked.append(len(buffer)) or fill(self, buffer))
    read_kineto(data / "h200_ddp_eager_rank0.json.gz", mode="chunked")
    assert max(asked) == 1 << 20
    assert len(asked) > 7
