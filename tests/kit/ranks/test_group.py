"""Talking to ranks."""

import threading
from pathlib import Path

import pytest
import torch

from kit import progress
from kit.ranks import engine
from kit.ranks.errors import RankError, RankNumberError, RanksError
from kit.ranks.group import Ranks
from kit.ranks.remote import RemoteRepr


def test_run_gives_results_in_the_order_of_the_ranks(pair: Ranks) -> None:
    def place(factor: int) -> int:
        import torch.distributed as dist

        return factor * (dist.get_rank() + 1)

    assert pair.run(place, 10) == [10, 20]


def test_tensors_come_back_equal_and_writable(pair: Ranks) -> None:
    tensors = [
        torch.arange(6.0).reshape(2, 3),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.ones(3, dtype=torch.bfloat16),
        torch.tensor(7),
        torch.empty(0, 4),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]).conj(),
        torch.ones(2, requires_grad=True),
    ]
    for back in pair.run(lambda sent: sent, tensors):
        for sent, received in zip(tensors, back, strict=True):
            assert received.dtype == sent.dtype
            assert received.requires_grad == sent.requires_grad
            assert torch.equal(received, sent)
        back[0].add_(1)


def test_a_parameter_stays_a_parameter(pair: Ranks) -> None:
    assert pair.run(lambda p: type(p).__name__, torch.nn.Parameter(torch.ones(2))) == ["Parameter", "Parameter"]


def test_push_and_pull(pair: Ranks) -> None:
    pair.push(number=3, word="a")
    assert pair.pull("number + rank") == [3, 4]
    assert pair.pull("word", rank=1) == "a"


def test_pull_of_an_unknown_name_says_which(pair: Ranks) -> None:
    with pytest.raises(RankError, match="ranks 0, 1: NameError: name 'nothing' is not defined"):
        pair.pull("nothing")


def test_the_namespace_holds_what_cells_need(pair: Ranks) -> None:
    assert pair.execute("rank, world_size, str(device), torch.__name__, dist.__name__, kit.__name__")[1] == (
        1,
        2,
        "cpu",
        "torch",
        "torch.distributed",
        "kit",
    )


def test_execute_gives_the_value_of_the_last_expression(pair: Ranks) -> None:
    assert pair.execute("x = rank + 1\nx * 2") == [2, 4]
    assert pair.execute("x = 5") == [None, None]
    assert pair.execute("x;") == [None, None]
    assert pair.execute("x", ranks=[1]) == [5]


def test_functions_and_classes_of_a_cell_live_on_the_ranks(pair: Ranks) -> None:
    pair.execute("class Point:\n    def __init__(self, x): self.x = x\n\ndef point():\n    return Point(rank)")
    assert pair.execute("point().x") == [0, 1]
    assert [p.x for p in pair.execute("point()")] == [0, 1]


def test_a_syntax_error_is_raised_before_anything_runs(pair: Ranks) -> None:
    with pytest.raises(SyntaxError):
        pair.execute("ran = True\nif:")
    assert pair.pull("'ran' in globals()") == [False, False]


def test_hold_keeps_results_on_the_ranks(pair: Ranks) -> None:
    remote = pair.hold(lambda: {"lock": __import__("threading").Lock(), "value": 4})
    assert pair.run(lambda held: held["value"], remote) == [4, 4]
    assert pair.run(lambda nested: nested[0]["held"]["value"], [{"held": remote}]) == [4, 4]
    assert repr(remote) == "Remote('_held_1' on 2 ranks)"


def test_what_nobody_refers_to_is_dropped_on_the_ranks(pair: Ranks) -> None:
    remote = pair.hold(list)
    name = remote.name
    del remote
    pair.run(int)  # takes the message along
    assert pair.pull(f"{name!r} in globals()") == [False, False]


def test_a_reference_by_name_opens_on_the_ranks(pair: Ranks) -> None:
    pair.execute("model = [rank]")
    assert pair.run(lambda model: model, pair["model"]) == [[0], [1]]
    assert pair["model"].pull(rank=1) == [1]
    with pytest.raises(RankError, match="name 'typo' is not defined on this rank"):
        pair.run(len, pair["typo"])


def test_the_value_of_a_cell_that_cannot_be_sent_comes_as_text(pair: Ranks) -> None:
    (value, _) = pair.execute("import threading\nthreading.Lock()")
    assert isinstance(value, RemoteRepr)
    assert value.type == "lock"
    assert repr(value).startswith("<unlocked _thread.lock object")


def test_arguments_that_cannot_be_sent_are_an_error_before_anything_runs(pair: Ranks) -> None:
    with pytest.raises(RanksError, match=r"len or its arguments cannot be sent to the ranks \(TypeError"):
        pair.run(len, threading.Lock())


def test_a_result_that_cannot_be_read_here_is_an_error(pair: Ranks, tmp_path: Path) -> None:
    (tmp_path / "only_there.py").write_text("class Thing: pass\n")
    pair.execute(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport only_there")
    with pytest.raises(
        RankError, match=r"rank.* ResultError: the result cannot be read in the notebook \(ModuleNotFound"
    ):
        pair.pull("only_there.Thing()")
    assert pair.execute("1") == [1, 1]


def test_unknown_ranks_are_refused(pair: Ranks) -> None:
    for use in (lambda: pair.execute("1", ranks=[2]), lambda: pair.pull("1", rank=-1), lambda: pair.replace(2)):
        with pytest.raises(RankNumberError, match="expected different numbers from 0 to 1, the ranks of this group"):
            use()


def test_a_living_rank_is_not_replaced(pair: Ranks) -> None:
    with pytest.raises(RanksError, match=r"rank 0 is alive; replace\(\) starts a dead rank anew"):
        pair.replace(0)


def test_progress_of_a_rank_arrives_with_its_number(pair: Ranks) -> None:
    def work() -> None:
        from kit import progress

        with progress.task("compiling", total=1) as task:
            task.advance("half way")

    seen: list[progress.Event] = []
    stop = progress.subscribe(seen.append)
    try:
        pair.run(work)
    finally:
        stop()
    for rank in (0, 1):
        assert [(e.task, e.message, e.done) for e in seen if e.rank == rank] == [
            ("compiling", "", 0),
            ("compiling", "half way", 1),
            ("compiling", "half way", 1),
        ]
    assert len({event.key for event in seen}) == 2


def test_calls_from_two_threads_wait_for_one_another(pair: Ranks) -> None:
    results: list[list[int]] = []

    def call() -> None:
        results.append(pair.execute("import time\ntime.sleep(0.1)\nrank"))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[0, 1]] * 3


def test_a_sink_that_calls_back_is_refused_instead_of_hanging(pair: Ranks) -> None:
    said: list[str] = []

    def sink(rank: int, stream: str, text: str) -> None:
        try:
            pair.run(int)
        except RanksError as error:
            said.append(str(error))

    with pair.output_to(sink):
        pair.execute("if rank == 0: print('a line')")
    assert said
    assert said[0].startswith("a call on these ranks is under way in this thread")


def test_a_sink_that_raises_leaves_the_ranks_usable(pair: Ranks) -> None:
    def broken(rank: int, stream: str, text: str) -> None:
        raise OSError("the screen is gone")

    with pytest.raises(OSError, match="the screen is gone"), pair.output_to(broken):
        pair.execute("print('x')\nwhile True: pass")
    assert pair.execute("y = torch.ones(1)\ndist.all_reduce(y)\ny.item()") == [2.0, 2.0]


def test_a_reference_of_another_group_is_refused(pair: Ranks) -> None:
    with engine.launch(1) as other:
        remote = other.hold(int)
        with pytest.raises(RanksError, match=r"Remote\('_held_1' on 1 ranks\) is of another group"):
            pair.run(lambda value: value, remote)


def test_a_cell_that_closes_its_output_harms_no_rank(pair: Ranks) -> None:
    pair.execute("import sys\nkept = sys.stdout\nsys.stdout = None")
    assert pair.execute("sys.stdout = kept\n1") == [1, 1]


def test_running_the_set_up_cell_twice_is_refused_at_once_and_breaks_nothing(pair: Ranks) -> None:
    for _ in range(2):
        with pytest.raises(RankError, match="trying to initialize the default process group twice"):
            pair.execute("dist.init_process_group('gloo')")
        assert pair.execute("y = torch.ones(1)\ndist.all_reduce(y)\ny.item()") == [2.0, 2.0]
    assert pair.epoch == 0
