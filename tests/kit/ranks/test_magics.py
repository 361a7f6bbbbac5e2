"""Cells that run on the ranks."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from kit.ranks import errors, magics
from kit.ranks.errors import CellSyntaxError, RankError, RanksError, RankTimeoutError
from kit.ranks.group import Ranks
from kit.ranks.stacks import State

Line = tuple[int, str, str]


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell(config=config)
    magics.register(shell)
    yield shell
    errors.show_files_as(str)


def run(shell: InteractiveShell, text: str) -> Any:
    """The value of a cell; raises what it raises."""
    shell.execution_count += 1
    done = shell.run_cell(text)
    done.raise_error()
    return done.result


def test_a_cell_runs_on_all_ranks_and_gives_a_list(shell: InteractiveShell, pair: Ranks, lines: list[Line]) -> None:
    assert run(shell, "%%ranks\nprint('on', rank)\nrank + 1") == [1, 2]
    assert sorted(lines) == [(0, "stdout", "on 0"), (1, "stdout", "on 1")]


def test_a_cell_without_a_value_gives_none(shell: InteractiveShell, pair: Ranks) -> None:
    assert run(shell, "%%ranks\nx = rank") is None


def test_only_some_ranks(shell: InteractiveShell, pair: Ranks) -> None:
    assert run(shell, "%%ranks --only 1\nrank") == [1]
    assert run(shell, "%%rank 1\nrank") == 1
    assert run(shell, "%%rank 0-1\nrank") == [0, 1]


def test_quiet_shows_nothing(shell: InteractiveShell, pair: Ranks, lines: list[Line]) -> None:
    assert run(shell, "%%ranks --quiet\nprint('x')\n3") == [3, 3]
    assert lines == []
    run(shell, "%%ranks\nprint('y')")
    assert len(lines) == 2, "the next cell is heard again"


def test_a_time_limit(shell: InteractiveShell, pair: Ranks) -> None:
    with pytest.raises(RankTimeoutError, match=r"no answer within 0\.2 s"):
        run(shell, "%%ranks --timeout 0.2\nimport time; time.sleep(50)")


def test_an_error_names_the_line_of_the_notebooks_cell(shell: InteractiveShell, pair: Ranks) -> None:
    with pytest.raises(RankError) as caught:
        run(shell, "%%ranks\nx = 1\nif rank == 1:\n    raise ValueError('boom')")
    assert str(caught.value) == (
        f"rank 1: ValueError: boom\n    <cell {shell.execution_count}>, line 4: raise ValueError('boom')"
    )


def test_the_error_is_shown_short(shell: InteractiveShell, pair: Ranks, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell("%%ranks\nraise ValueError('boom')")
    shown = capsys.readouterr().out
    assert "RankError: ranks 0, 1: ValueError: boom" in shown
    assert "magics.py" not in shown
    assert len(shown.strip().splitlines()) == 2


def test_a_function_of_a_notebook_cell_is_named_by_its_cell(shell: InteractiveShell, pair: Ranks) -> None:
    shell.user_ns["group"] = pair
    with pytest.raises(RankError) as caught:
        run(shell, "def inner():\n    return 1 / 0\n\ngroup.run(inner)")
    assert str(caught.value).split("\n")[1] == f"    <cell {shell.execution_count}>, line 2, in inner: return 1 / 0"


def test_a_cell_that_is_no_python_is_refused_briefly(shell: InteractiveShell, pair: Ranks) -> None:
    with pytest.raises(CellSyntaxError) as caught:
        run(shell, "%%ranks\nran = 1\nx = = 2")
    assert str(caught.value).split("\n") == [
        f'File "<cell {shell.execution_count}>", line 3',
        "    x = = 2",
        "        ^",
        "SyntaxError: invalid syntax",
    ]
    assert pair.pull("'ran' in globals()") == [False, False]


def test_a_named_group(shell: InteractiveShell, pair: Ranks) -> None:
    shell.user_ns["mine"] = pair
    assert run(shell, "%%ranks --group mine\nrank") == [0, 1]
    with pytest.raises(RanksError, match="--group other: expected a variable that holds a group"):
        run(shell, "%%ranks --group other\nrank")


def test_without_a_group_the_error_says_what_to_do(shell: InteractiveShell) -> None:
    for cell in ("%%ranks\n1", "%%rank 0\n1", "%ranks"):
        with pytest.raises(RanksError) as caught:
            run(shell, cell)
        assert str(caught.value) == "no group of ranks is open; expected one. Call kit.launch(2) first."


def test_variables_are_not_expanded_in_the_cell(shell: InteractiveShell, pair: Ranks) -> None:
    shell.user_ns["word"] = "expanded"
    assert run(shell, "%%ranks\n'{word} $word'") == ["{word} $word"] * 2


def test_the_status_is_a_table(shell: InteractiveShell, pair: Ranks) -> None:
    status = run(shell, "%ranks")
    head, names, *rows = repr(status).split("\n")
    assert head == "Ranks(2 ranks, gloo, cpu, epoch 0)"
    assert names.split() == ["rank", "pid", "state", "seconds", "at", "device", "memory", "GPU"]
    assert [row.split()[:3] for row in rows] == [[str(rank), str(pid), "idle"] for rank, pid in pair.pids.items()]
    assert all(row.bytes_resident > 10_000_000 for row in status.rows)
    assert status._repr_html_().count("<tr>") == 3


def test_the_status_names_the_dead(shell: InteractiveShell, pair: Ranks) -> None:
    with pytest.raises(RankError):
        pair.execute("import os\nos._exit(3)", ranks=[1])
    while (status := run(shell, "%ranks")).rows[0].state is not State.IDLE:  # it leaves the group that lost a member
        time.sleep(0.01)
    assert [row[2] for row in status.table.rows] == ["idle", "exit code 3"]
    assert status.note == "rank 1 is dead (exit code 3); rank 0 is idle"


@pytest.mark.parametrize(("text", "ranks"), [("0", [0]), ("0,2-3", [0, 2, 3]), ("2-3,3", [2, 3]), (" 1 , 0 ", [0, 1])])
def test_rank_numbers_are_read(text: str, ranks: list[int]) -> None:
    assert magics.parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "a", "1-", "3-1", "0,,1", "-1"])
def test_wrong_rank_numbers_are_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError):
        magics.parse_ranks(text)
