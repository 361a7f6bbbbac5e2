"""Flight records of real gloo ranks, written while they hang and after they were freed."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

import kit
from kit.ranks.errors import RanksError
from kit.ranks.group import Ranks

HANG = """
for number in range(3):
    if not (rank == 1 and number == 2):
        dist.all_reduce(torch.ones(8 * (number + 1)))
if rank == 1:
    import time; time.sleep(60)
"""
SAID = [
    "Rank 1 never entered collective 5, all_reduce of [24] Float (<cell 7>:4); rank 0 waits there.",
    "The last collective on which ranks 0, 1 agree is collective 4, all_reduce of [16] Float (<cell 7>:4).",
]


def test_a_hang_is_explained_while_it_lasts_and_after_it(unchecked: Ranks, tmp_path: Path) -> None:
    unchecked.execute("dist.all_reduce(torch.ones(2))")
    during: list[str] = []

    def look() -> None:
        time.sleep(0.5)
        during.extend(map(str, kit.explain_hang(unchecked.dump(tmp_path / "made" / "during")).findings[:2]))
        unchecked.interrupt()

    looking = threading.Thread(target=look)
    looking.start()
    with pytest.raises(KeyboardInterrupt):
        unchecked.execute(HANG, filename="<cell 7>")
    looking.join()
    assert during == SAID
    written = unchecked.dump(tmp_path)  # of the group that was ended, without the joining of the next
    assert written == (tmp_path / "rank0.json", tmp_path / "rank1.json")
    assert [str(finding) for finding in kit.explain_hang(written).findings[:2]] == SAID
    assert [len(json.loads(path.read_text())["entries"]) for path in written] == [5, 4]  # joining is number 1
    assert kit.read_log(written).groups[0].ranks == (0, 1)


def test_a_dead_rank_leaves_no_file_and_is_missed(pair: Ranks, tmp_path: Path) -> None:
    pair.execute("dist.all_reduce(torch.ones(2))")
    os.kill(pair.pids[1], signal.SIGKILL)
    while 1 in pair.alive:
        time.sleep(0.01)
    (written,) = pair.dump(tmp_path)
    assert written.name == "rank0.json"
    assert str(kit.explain_hang(written).findings[0]).startswith("Rank 1 left no log: it ended")


def test_ranks_that_cannot_answer_are_an_error_that_says_so(pair: Ranks, tmp_path: Path) -> None:
    os.kill(pair.pids[0], signal.SIGSTOP)
    os.kill(pair.pids[1], signal.SIGSTOP)
    try:
        with pytest.raises(RanksError, match=r"no rank gave its flight record within 0.1 s; expected at least one"):
            pair.dump(tmp_path / "none", seconds=0.1)
    finally:
        for pid in pair.pids.values():
            os.kill(pid, signal.SIGCONT)
    assert not (tmp_path / "none").exists()
