"""Where every rank is, asked while they are stuck."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kit import progress
from kit.ranks import engine
from kit.ranks.errors import InterruptedRanksError, RankError, RankTimeoutError
from kit.ranks.group import Ranks
from kit.ranks.stacks import Collective, RankStack, Stacks, State


@contextmanager
def stuck(ranks: Ranks, code: str) -> Iterator[None]:
    """The code runs in another thread within the block, and is stopped at its end."""

    def call() -> None:
        with pytest.raises(RankError if "raise" in code else InterruptedRanksError):
            ranks.execute(code, filename="<cell 5>")

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield
    finally:
        ranks.interrupt()
        thread.join(20)
        assert not thread.is_alive()


def when(ranks: Ranks, is_so: Callable[[Stacks], bool]) -> Stacks:
    """The first stacks of which something is so, and in which the ranks are still where they were a moment before.

    One rank may have left a collective in which the other one is for a moment more.
    """
    end = time.monotonic() + 10
    before = None
    while True:
        stacks = ranks.stacks()
        now = [(row.state, str(row.collective)) for row in stacks.rows]
        if is_so(stacks) and now == before:
            return stacks
        before = now
        assert time.monotonic() < end, f"waited in vain, at last: {stacks.explain()}"
        time.sleep(0.02)


def states(stacks: Stacks) -> list[State]:
    return [row.state for row in stacks.rows]


def test_idle_ranks_are_idle_and_tell_their_memory(pair: Ranks) -> None:
    stacks = pair.stacks()
    assert stacks.explain() == "all ranks are idle"
    assert [(row.rank, row.pid, row.frames) for row in stacks.rows] == [(r, p, ()) for r, p in pair.pids.items()]
    assert all(row.bytes_resident > 10_000_000 and row.bytes_gpu == 0 for row in stacks.rows)


def test_a_missing_rank_is_told_with_its_line_and_the_collective_with_its_number(unchecked: Ranks) -> None:
    code = (
        "dist.all_reduce(torch.ones(2))\ndef step(x):\n    dist.all_reduce(x)\n"
        "if rank == 0:\n    step(torch.ones(4))\nelse:\n    import time; time.sleep(50)"
    )
    with stuck(unchecked, code):
        stacks = when(unchecked, lambda s: states(s) == [State.COLLECTIVE, State.WAITING])
    waits, sleeps = stacks.rows
    assert waits.collective is not None
    assert str(waits.collective) == "all_reduce number 3, float32[4]"
    assert waits.collective.begun
    assert [str(frame) for frame in waits.frames] == [
        "<cell 5>, line 5: step(torch.ones(4))",
        "<cell 5>, line 3, in step: dist.all_reduce(x)",
    ]
    assert sleeps.place == "cell 5 line 7"
    assert str(sleeps.last) == "all_reduce number 2, float32[2]"
    assert stacks.call == "cell 5"
    assert stacks.explain() == (
        "rank 0 waits in all_reduce number 3, float32[4], cell 5 line 3; "
        "rank 1 has not come to it and waits at cell 5 line 7"
    )


def test_while_collectives_are_compared_the_number_is_the_one_to_come(pair: Ranks) -> None:
    with stuck(pair, "if rank == 0:\n    dist.broadcast(torch.ones(2, 2).int(), 0)\nelse:\n    while True: pass"):
        stacks = when(pair, lambda s: states(s) == [State.COLLECTIVE, State.RUNNING])
    assert stacks.rows[0].collective is not None
    assert str(stacks.rows[0].collective) == "broadcast number 2, int32[2, 2]"
    assert not stacks.rows[0].collective.begun


@pytest.mark.parametrize(
    ("code", "state", "waits_in"),
    [
        ("dist.new_group([0, 1])", State.STORE, "new_group"),
        ("dist.distributed_c10d._get_default_store().get('nobody sets this')", State.STORE, "None"),
        ("dist.recv(torch.ones(1), src=1)", State.COLLECTIVE, "recv"),
        ("dist.all_reduce(torch.ones(3), async_op=True).wait()", State.COLLECTIVE, "all_reduce number 2, float32[3]"),
        ("while True: pass", State.RUNNING, "None"),
        ("import time; time.sleep(50)", State.WAITING, "None"),
        ("import threading; threading.Event().wait()", State.WAITING, "None"),
    ],
)
def test_what_a_rank_does_alone(unchecked: Ranks, code: str, state: State, waits_in: str) -> None:
    with stuck(unchecked, f"if rank == 0:\n    {code}"):
        stacks = when(unchecked, lambda s: states(s) == [state, State.FINISHED])
    assert str(stacks.rows[0].collective) == waits_in
    assert stacks.rows[0].place == "cell 5 line 2"


def test_a_backward_pass_that_waits_for_an_absent_rank_names_its_collective(unchecked: Ranks) -> None:
    unchecked.execute("net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))")
    with stuck(unchecked, "if rank == 0:\n    net(torch.ones(1, 2)).sum().backward()"):
        stacks = when(unchecked, lambda s: states(s) == [State.COLLECTIVE, State.FINISHED])
    assert stacks.rows[0].collective is not None
    assert (stacks.rows[0].collective.kind, stacks.rows[0].collective.tensors) == ("all_reduce", "float32[6]")
    assert stacks.rows[0].place == "cell 5 line 2"


def test_seconds_at_a_line_count_from_when_it_was_first_seen(pair: Ranks) -> None:
    with stuck(pair, "import time\ntime.sleep(50)"):
        when(pair, lambda s: all(row.place == "cell 5 line 2" for row in s.rows))
        stacks = when(pair, lambda s: min(row.line_seconds for row in s.rows) > 0.3)
    assert all(row.line_seconds <= row.seconds + 0.1 for row in stacks.rows)


def test_a_stopped_process_is_told_within_the_time_given(pair: Ranks) -> None:
    os.kill(pair.pids[1], signal.SIGSTOP)
    try:
        begun = time.monotonic()
        stacks = pair.stacks(seconds=0.2)
        assert time.monotonic() - begun < 1.0
    finally:
        os.kill(pair.pids[1], signal.SIGCONT)
    assert states(stacks) == [State.IDLE, State.SILENT]
    assert stacks.explain() == (
        "rank 1 gave no answer: stopped, or in native code that holds Python's lock; rank 0 is idle"
    )
    assert when(pair, lambda s: states(s) == [State.IDLE, State.IDLE]).rows[1].pid == pair.pids[1]


def test_a_dead_rank_is_told_with_how_it_died(pair: Ranks) -> None:
    os.kill(pair.pids[1], signal.SIGKILL)
    stacks = when(pair, lambda s: s.rows[1].state is State.DEAD)
    assert stacks.explain() == "rank 1 is dead (SIGKILL); rank 0 is idle"


def test_asking_while_a_rank_dies_does_not_keep_the_call_from_noticing(pair: Ranks) -> None:
    code = "if rank == 1:\n    import os, time\n    time.sleep(0.2)\n    os._exit(3)\nraise KeyError('x')"
    with stuck(pair, code):
        when(pair, lambda s: s.rows[1].state is State.DEAD)
    assert pair.ended == {1: 3}


def test_a_time_limit_says_who_waited_for_whom(unchecked: Ranks) -> None:
    with pytest.raises(RankTimeoutError) as caught:
        unchecked.execute("if rank == 0:\n    dist.all_reduce(torch.ones(4))", timeout=0.3, filename="<cell 5>")
    said = "rank 0 waits in all_reduce number 2, float32[4], cell 5 line 2; rank 1 has finished"
    assert f"\nWhere the ranks were: {said}.\n" in str(caught.value)
    assert caught.value.stacks is not None
    assert caught.value.stacks.explain() == said


def test_ctrl_c_says_who_waited_for_whom_and_stacks_remember_it(unchecked: Ranks) -> None:
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(InterruptedRanksError) as caught:
        unchecked.execute("if rank == 0:\n    dist.all_reduce(torch.ones(4))", filename="<cell 5>")
    said = "rank 0 waits in all_reduce number 2, float32[4], cell 5 line 2; rank 1 has finished"
    assert f"\nWhere the ranks were: {said}.\n" in str(caught.value)
    stacks = when(unchecked, lambda s: states(s) == [State.IDLE, State.IDLE])
    assert stacks.explain() == f"all ranks are idle; where they were when the last call was stopped: {said}"
    assert "all_reduce number 2" in stacks.table.rows[0][5]
    unchecked.execute("1")
    assert unchecked.stacks().explain() == "all ranks are idle"


def test_an_error_carries_where_the_others_were(unchecked: Ranks) -> None:
    with pytest.raises(RankError) as caught:
        unchecked.execute(
            "if rank == 1:\n    raise ValueError('boom')\n\ndist.all_reduce(torch.ones(4))", filename="<cell 5>"
        )
    assert caught.value.stacks is not None
    assert caught.value.stacks.explain() == (
        "rank 0 waits in all_reduce number 2, float32[4], cell 5 line 4; rank 1 left at cell 5 line 2 with ValueError"
    )


def test_progress_says_after_two_seconds_where_the_ranks_are(unchecked: Ranks) -> None:
    seen: list[progress.Event] = []
    stop = progress.subscribe(seen.append)
    try:
        unchecked.execute("import time\ntime.sleep(2.4 if rank == 0 else 0)", filename="<cell 5>")
        unchecked.execute("1")
    finally:
        stop()
    assert [(event.task, event.state, event.done, event.total) for event in seen] == [
        ("cell 5", progress.State.RUNNING, 1, 2),
        ("cell 5", progress.State.FINISHED, 2, 2),
    ]
    assert seen[0].message == "rank 1 has finished; rank 0 waits at cell 5 line 2 for 2 s"
    assert 2.0 <= seen[0].seconds < 2.4


def test_the_recorder_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")
    code = "if rank == 0:\n    dist.all_reduce(torch.ones(4))"
    with engine.launch(2, threads=1, check_collectives=False) as ranks, stuck(ranks, code):
        stacks = when(ranks, lambda s: states(s) == [State.WAITING, State.FINISHED])
    assert stacks.rows[0].place == "cell 5 line 2"


def test_the_table_has_a_row_for_each_rank_and_the_sentence(pair: Ranks) -> None:
    row = RankStack(rank=3, pid=7, state=State.COLLECTIVE, seconds=2.04, collective=Collective(kind="barrier"))
    table = Stacks(group="g", rows=(row,)).table
    assert table.rows == (("3", "in collective", "2.0", "", "", "barrier"),)
    assert table.notes == ("rank 3 waits in barrier",)
    assert "<table>" in Stacks(group="g", rows=(row,))._repr_html_()
