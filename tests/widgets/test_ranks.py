"""The rank panel without a browser: rows, buttons, what papermill keeps of it."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from kit.ranks import engine
from kit.ranks.errors import InterruptedRanksError
from kit.ranks.group import Ranks
from widgets.ranks import RankPanel


@pytest.fixture(scope="module", autouse=True)
def no_process_stays() -> Iterator[None]:
    yield
    engine.shutdown()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    with engine.launch(2, threads=1, check_collectives=False, timeout=30) as ranks:
        yield ranks


@pytest.fixture
def panel(ranks: Ranks) -> Iterator[RankPanel]:
    panel = RankPanel(ranks)
    yield panel
    panel.close()


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end, "waited 20 s in vain"
        time.sleep(0.02)


def begin(ranks: Ranks, code: str) -> threading.Thread:
    """Run code in a thread that is stopped later."""

    def call() -> None:
        with pytest.raises(InterruptedRanksError):
            ranks.execute(code, filename="<cell 5>")

    thread = threading.Thread(target=call)
    thread.start()
    return thread


def press(panel: RankPanel, **content: object) -> None:
    """Press a button as the page does."""
    panel._handle_custom_msg(content, [])


def test_idle_ranks_have_a_row_each(panel: RankPanel) -> None:
    assert [(row["rank"], row["kind"], row["place"]) for row in panel.rows] == [(0, "idle", ""), (1, "idle", "")]
    assert all(row["memory"].endswith(" MB") and not row["dead"] for row in panel.rows)
    assert panel.title == "2 ranks, gloo, cpu, epoch 0"
    assert panel.sentence == "All ranks are idle."
    assert panel.call == 0


def test_rows_follow_a_call_that_another_thread_makes_and_interrupt_stops_it(ranks: Ranks, panel: RankPanel) -> None:
    thread = begin(ranks, "if rank == 0:\n    dist.all_reduce(torch.ones(4))\nelse:\n    while True: pass")
    wait_until(lambda: [row["kind"] for row in panel.rows] == ["collective", "running"])
    assert panel.rows[0]["waits"] == "all_reduce number 2, float32[4]"
    assert (panel.rows[1]["place"], panel.rows[1]["code"]) == ("cell 5 line 4", "while True: pass")
    assert panel.rows[1]["stack"] == ["<cell 5>, line 4: while True: pass"]
    assert panel.title.endswith(": cell 5 runs")
    press(panel, press="interrupt", call=panel.call)
    thread.join(20)
    wait_until(lambda: panel.said == "Interrupted.")
    wait_until(lambda: [row["kind"] for row in panel.rows] == ["idle", "idle"])
    assert panel.call == 0


def test_a_late_click_does_not_stop_another_call(ranks: Ranks, panel: RankPanel) -> None:
    thread = begin(ranks, "while True: pass")
    wait_until(lambda: panel.call != 0)
    press(panel, press="interrupt", call=panel.call - 1)
    wait_until(lambda: panel.said == "That call is over already.")
    assert thread.is_alive()
    ranks.interrupt()
    thread.join(20)


def test_a_dead_rank_is_replaced_by_its_button(ranks: Ranks, panel: RankPanel) -> None:
    os.kill(ranks.pids[1], signal.SIGKILL)
    wait_until(lambda: bool(panel.rows[1]["dead"]))
    assert panel.rows[1]["state"] == "dead (SIGKILL)"
    press(panel, press="replace", rank=1)
    wait_until(lambda: panel.said.startswith("rank 1 was started anew in "))
    wait_until(lambda: not panel.rows[1]["dead"])
    assert ranks.execute("y = torch.ones(1)\ndist.all_reduce(y)\ny.item()") == [2.0, 2.0]


def test_what_a_button_cannot_do_is_said(panel: RankPanel) -> None:
    press(panel, press="replace", rank=0)
    wait_until(lambda: panel.said.startswith("RanksError: rank 0 is alive"))


def test_at_most_five_updates_a_second(ranks: Ranks, panel: RankPanel) -> None:
    updates: list[float] = []
    panel.observe(lambda change: updates.append(time.monotonic()), names="rows")
    thread = begin(ranks, "import time\nn = 0\nwhile True:\n    n += 1\n    time.sleep(0.001)")
    wait_until(lambda: panel.call != 0)
    updates.clear()
    time.sleep(1.1)
    seen = len(updates)
    ranks.interrupt()
    thread.join(20)
    assert seen <= 5


def test_the_panel_ends_with_its_group(ranks: Ranks, panel: RankPanel) -> None:
    ranks.close()
    wait_until(lambda: panel.sentence == "The group is closed.")
    wait_until(lambda: not panel._watcher.is_alive())
    assert panel.rows == []


def test_closing_the_panel_leaves_the_ranks(ranks: Ranks) -> None:
    panel = RankPanel(ranks)
    panel.close()
    assert not panel._watcher.is_alive()
    assert ranks.execute("rank") == [0, 1]


def test_papermill_keeps_a_table(ranks: Ranks, panel: RankPanel) -> None:
    live = panel._repr_mimebundle_()
    bundle = live[0] if isinstance(live, tuple) else live
    assert bundle["text/html"].count("<tr>") == 3
    assert "idle" in bundle["text/html"]
    assert bundle["text/plain"] == "RankPanel(Ranks(2 ranks, gloo, cpu, epoch 0))"


def test_the_face_names_no_other_machine(panel: RankPanel) -> None:
    assert "http" not in str(panel._esm)
    assert "http" not in str(panel._css)
