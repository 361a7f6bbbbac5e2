"""What comes back from ranks and what they write, on every engine alike."""

import os
import threading
from pathlib import Path

import pytest
import torch

from kit.ranks.errors import RankError
from kit.ranks.group import Ranks

ENGINES = ("local", "ipyparallel")
SUM = "y = torch.ones(1)\ndist.all_reduce(y)\ny.item()"
Line = tuple[int, str, str]


def test_tensors_go_there_and_come_back(pair: Ranks) -> None:
    sent = torch.arange(6.0).reshape(2, 3).t()
    pair.push(sent=sent)
    assert all(received.equal(sent) for received in pair.pull("sent"))


def test_a_result_that_cannot_be_sent_is_an_error_and_costs_no_group(pair: Ranks) -> None:
    pair.execute("kept = 10 + rank")
    with pytest.raises(RankError) as caught:
        pair.run(threading.Lock)
    assert str(caught.value) == (
        "ranks 0, 1: ResultError: the result, a lock, cannot be sent to the notebook (TypeError: cannot pickle "
        "'_thread.lock' object). Return plain values or tensors, or keep it on the ranks with ranks.hold(...)"
    )
    assert pair.epoch == 0
    assert pair.pull("kept") == [10, 11]
    assert pair.execute(SUM) == [2.0, 2.0]


def test_a_result_of_200_megabytes_arrives_whole(pair: Ranks) -> None:
    (big,) = pair.execute("torch.arange(50_000_000, dtype=torch.int32)", ranks=[1])
    assert big.numel() * big.element_size() == 200_000_000
    assert big.equal(torch.arange(50_000_000, dtype=torch.int32))
    assert pair.execute(SUM) == [2.0, 2.0]


def test_child_processes_are_heard_too(pair: Ranks, lines: list[Line]) -> None:
    pair.execute("import os\nos.system('echo from a child of $RANK')", ranks=[1])
    assert lines == [(1, "stdout", "from a child of 1")]


def test_a_hundred_thousand_lines_from_each_rank_arrive_in_order(pair: Ranks, lines: list[Line]) -> None:
    pair.execute("for n in range(100_000): print(n)")
    for rank in (0, 1):
        assert [text for r, _, text in lines if r == rank] == [str(n) for n in range(100_000)]


def test_all_of_a_cells_output_is_shown_before_the_call_returns(pair: Ranks, lines: list[Line]) -> None:
    for n in range(20):
        pair.execute(f"import os\nprint({n})\nos.system('echo child')\nprint('no end', end='')")
        assert sorted(lines) == sorted(
            (rank, "stdout", text) for rank in (0, 1) for text in (str(n), "child", "no end")
        )
        lines.clear()


def test_a_module_edited_between_cells_is_as_on_disk_after_a_reload(pair: Ranks, tmp_path: Path) -> None:
    module = tmp_path / "edited.py"
    module.write_text("def value():\n    return 1\n")
    pair.execute(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nkept = 10 + rank\nimport edited")
    assert pair.execute("edited.value()") == [1, 1]
    module.write_text("def value():\n    # now it fails\n    raise ValueError('new code')\n")
    os.utime(module, (1, 1))  # another time than that of the cached bytecode
    with pytest.raises(RankError) as caught:
        pair.execute("import importlib\nimportlib.reload(edited)\nedited.value()", filename="<c>")
    assert str(caught.value).split("\n")[:3] == [
        "ranks 0, 1: ValueError: new code",
        "    <c>, line 3: edited.value()",
        f"    {module}, line 3, in value: raise ValueError('new code')",
    ]
    assert pair.pull("kept") == [10, 11]
    assert pair.execute(SUM) == [2.0, 2.0]


def test_a_replaced_rank_imports_an_edited_module_as_it_is_now(pair: Ranks, tmp_path: Path) -> None:
    module = tmp_path / "edited_too.py"
    module.write_text("VALUE = 1\n")
    look = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport edited_too\nedited_too.VALUE"
    assert pair.execute(look) == [1, 1]
    module.write_text("VALUE = 22\n")
    with pytest.raises(RankError):
        pair.execute("import os\nos._exit(3)", ranks=[1])
    pair.replace(1)
    assert pair.execute(look) == [1, 22]
