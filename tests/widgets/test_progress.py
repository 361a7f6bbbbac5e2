"""The progress faces, with a clock and events of the test's own."""

import io
import threading
import time
from collections.abc import Callable

import pytest

from kit import progress
from kit.progress import Event, State
from widgets.progress import Board, LineFace, Painter, Row, TerminalFace, choose_face


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Recorder:
    """A face that keeps what it was asked to draw."""

    def __init__(self) -> None:
        self.drawn: list[list[str]] = []

    def draw(self, rows: list[Row]) -> None:
        self.drawn.append([str(row) for row in rows])


def event(
    key: str = "a",
    *,
    state: State = State.RUNNING,
    done: int = 0,
    seconds: float = 0.0,
    rank: int | None = None,
) -> Event:
    return Event(key=key, task="compile", state=state, done=done, total=4, message="lower", seconds=seconds, rank=rank)


def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not is_so():
        assert time.monotonic() < end, "waited 5 s in vain"
        time.sleep(0.01)


def test_work_is_shown_only_after_two_seconds() -> None:
    clock = Clock()
    board = Board(clock)
    board.note(event())
    clock.now += 1.9
    assert board.take_rows() == []
    clock.now += 0.2
    assert [str(row) for row in board.take_rows()] == ["compile: 0/4, lower, 2.1 s"]


def test_short_work_is_never_shown() -> None:
    board = Board(Clock())
    board.note(event())
    board.note(event(state=State.FINISHED, seconds=1.5))
    assert board.take_rows() == []
    assert board.is_idle()


def test_work_that_was_shown_is_shown_once_more_when_it_is_over() -> None:
    board = Board(Clock())
    board.note(event(seconds=3.0))
    board.take_rows()
    board.note(event(state=State.FAILED, seconds=3.5))
    assert [str(row) for row in board.take_rows()] == ["compile: failed after 3.5 s (lower)"]
    assert board.take_rows() == []


def test_equal_keys_of_two_ranks_are_two_rows() -> None:
    board = Board(Clock())
    board.note(event(seconds=3.0, rank=0))
    board.note(event(seconds=3.0, rank=1))
    assert [str(row) for row in board.take_rows()] == [
        "rank 0: compile: 0/4, lower, 3.0 s",
        "rank 1: compile: 0/4, lower, 3.0 s",
    ]


def test_lines_come_at_the_start_every_five_seconds_and_at_the_end() -> None:
    clock, text = Clock(), io.StringIO()
    face = LineFace(text.write, clock)
    for second in range(2, 9):
        clock.now = 100.0 + second
        face.draw([Row(event=event(done=1), seconds=float(second))])
    face.draw([Row(event=event(state=State.FINISHED), seconds=8.0)])
    assert text.getvalue().splitlines() == [
        "compile: 1/4, lower, 2.0 s",
        "compile: 1/4, lower, 7.0 s",
        "compile: finished in 8.0 s",
    ]


def test_events_of_many_threads_are_painted_and_the_painter_ends() -> None:
    face = Recorder()
    painter = Painter(face)
    threads = [threading.Thread(target=progress.emit, args=(event(str(n), seconds=2.0, rank=n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(lambda: {line[:6] for rows in face.drawn for line in rows} == {f"rank {n}" for n in range(8)})
    painter.close()
    assert all(thread.name != "kit-progress" for thread in threading.enumerate())


def test_a_painted_face_is_drawn_at_most_six_times_a_second() -> None:
    face = Recorder()
    painter = Painter(face)
    end = time.monotonic() + 1.0
    done = 0
    while time.monotonic() < end:
        done += 1
        progress.emit(event(done=done, seconds=2.0))
        time.sleep(0.001)
    painter.close()
    assert 2 <= len(face.drawn) <= 7


def test_the_end_of_work_is_drawn_before_emit_returns() -> None:
    face = Recorder()
    painter = Painter(face)
    progress.emit(event(seconds=2.5))
    wait_for(lambda: bool(face.drawn))
    progress.emit(event(seconds=2.6, state=State.FINISHED))
    last = face.drawn[-1]
    painter.close()
    assert last == ["compile: finished in 2.6 s"]


def test_without_terminal_and_kernel_progress_is_lines_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    face = choose_face()
    assert isinstance(face, LineFace)
    face.draw([Row(event=event(state=State.FINISHED), seconds=2.0)])
    assert capsys.readouterr().err == "compile: finished in 2.0 s\n"


def test_the_terminal_keeps_one_line_of_work_that_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    face = TerminalFace()
    face.draw([Row(event=event(done=2), seconds=2.0)])
    face.draw([Row(event=event(state=State.FINISHED), seconds=4.0)])
    assert "compile: finished in 4.0 s" in capsys.readouterr().err
