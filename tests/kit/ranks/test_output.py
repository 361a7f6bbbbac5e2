"""What ranks write arrives live, line by line, labelled."""

import os
import time

import pytest

from kit.ranks import calls, output
from kit.ranks.group import Ranks

Line = tuple[int, str, str]


def test_lines_are_labelled_by_rank_and_stream(pair: Ranks, lines: list[Line]) -> None:
    pair.execute("import sys\nprint('hello')\nprint('careful', file=sys.stderr)")
    assert sorted(lines) == [
        (0, "stderr", "careful"),
        (0, "stdout", "hello"),
        (1, "stderr", "careful"),
        (1, "stdout", "hello"),
    ]


def test_lines_come_while_the_cell_still_runs(pair: Ranks) -> None:
    seen: list[float] = []
    with pair.output_to(lambda rank, stream, text: seen.append(time.monotonic())):
        pair.execute("import time\nprint('first')\ntime.sleep(1.0)", ranks=[0])
    assert time.monotonic() - seen[0] > 0.7


def test_a_progress_bar_shows_its_last_state(pair: Ranks, lines: list[Line]) -> None:
    pair.execute("print('10 %\\r50 %\\r100 %')", ranks=[0])
    assert lines == [(0, "stdout", "100 %")]


def test_bytes_that_are_no_text_do_no_harm(pair: Ranks, lines: list[Line]) -> None:
    pair.execute("import os\nos.write(1, bytes([255, 65, 10]))", ranks=[0])
    assert lines == [(0, "stdout", "\ufffdA")]


def test_the_default_sink_writes_labelled_lines(capsys: pytest.CaptureFixture[str]) -> None:
    output.write_labelled(3, "stderr", "a line")
    assert capsys.readouterr().out == "[rank 3] a line\n"


def test_output_between_two_calls_is_bounded_and_what_is_dropped_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MAX_LINES_WAITING", 10)
    reader = output.Output()
    out, write_out = os.pipe()
    err, write_err = os.pipe()
    reader.add(0, out, err)
    os.write(write_out, b"".join(b"%d\n" % n for n in range(25)))
    seen: list[str] = []
    reader.drain_all(lambda rank, stream, text: seen.append(text))
    for fd in (write_out, write_err):
        os.close(fd)
    reader.close()
    assert seen[0] == "... 15 earlier lines dropped ...\n15"
    assert seen[1:] == [str(n) for n in range(16, 25)]


def test_nothing_is_dropped_of_a_call_before_the_notebook_comes_to_wait(
    pair: Ranks, lines: list[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "MAX_LINES_WAITING", 100)
    gather = calls.gather

    def late(*arguments: object, **options: object) -> object:
        time.sleep(0.5)  # other programs have the cores
        return gather(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(calls, "gather", late)
    pair.execute("for n in range(2_000): print(n)", ranks=[0])
    assert [text for _, _, text in lines] == [str(n) for n in range(2_000)]
