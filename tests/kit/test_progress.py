"""Progress events of a piece of work."""

import pytest

from kit import progress
from kit.progress import State


@pytest.fixture
def events():
    seen = []
    unsubscribe = progress.subscribe(seen.append)
    yield seen
    unsubscribe()


def test_a_task_reports_start_steps_and_end(events):
    with progress.task("load", total=2) as work:
        work.advance("first")
        work.advance("second")
    assert [(e.state, e.done, e.message) for e in events] == [
        (State.RUNNING, 0, ""),
        (State.RUNNING, 1, "first"),
        (State.RUNNING, 2, "second"),
        (State.FINISHED, 2, "second"),
    ]
    assert len({e.key for e in events}) == 1


def test_a_task_that_raises_has_failed_and_the_error_goes_on(events):
    with pytest.raises(KeyError), progress.task("load"):
        raise KeyError("x")
    assert (events[-1].state, events[-1].message) == (State.FAILED, "KeyError")


def test_two_tasks_of_one_name_have_different_keys(events):
    with progress.task("load"), progress.task("load"):
        pass
    assert len({e.key for e in events}) == 2


def test_after_unsubscribing_nothing_arrives():
    seen = []
    progress.subscribe(seen.append)()
    with progress.task("load"):
        pass
    assert seen == []
