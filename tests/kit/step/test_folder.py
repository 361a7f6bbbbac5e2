"""Whatever dies during a save, one whole saved step is on disk, and a half-written one is named."""

import re
import shutil

import pytest
import torch

import kit
from kit.ranks import RankError, launch

BUILD = """
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(5, 40), torch.nn.Linear(40, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
batch = torch.ones(4, 5), torch.ones(4, 1)
step = kit.compile_step(
    model, optimizer, lambda m, b: torch.nn.functional.mse_loss(m(b[0]), b[1]), batch, strategy="fsdp"
)
"""
# It dies in the fsync of its own file: that is half-written, and no metadata was made.
DIE_IN_SAVE = """
import os, signal
if rank == 1:
    os.fsync = lambda number: os.kill(os.getpid(), signal.SIGKILL)
step.save(path)
"""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_rank_killed_in_the_middle_of_a_save_loses_nothing(tmp_path):
    with launch(2) as ranks:
        ranks.push(path=tmp_path / "step")
        ranks.execute(BUILD)
        ranks.execute("step(batch); step.save(path); kept = [step(batch).item() for _ in range(2)]")
        kept = ranks.pull("kept")
        with pytest.raises(RankError, match="rank 1"):
            ranks.execute(DIE_IN_SAVE)
        assert names(tmp_path) == ["step", "step.writing"]
        assert "__1_0.distcp" in names(tmp_path / "step.writing")
        assert ".metadata" not in names(tmp_path / "step.writing")
        ranks.replace(1)
        ranks.push(path=tmp_path / "step")
        ranks.execute(BUILD)
        ranks.execute("step(batch); step.load(path); again = [step(batch).item() for _ in range(2)]; step.save(path)")
        assert ranks.pull("again") == kept
        assert names(tmp_path) == ["step"]
        assert ranks.pull("step.load(path) or step.steps_done") == [3, 3]


def one_step(path, *, before_load):
    step = made()
    step(batch())
    step.save(path)
    before_load(path)
    step.load(path)
    return step.steps_done


def batch():
    return torch.ones(4, 5), torch.ones(4, 1)


def made():
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Linear(6, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    return kit.compile_step(model, optimizer, lambda m, b: torch.nn.functional.mse_loss(m(b[0]), b[1]), batch())


def on_rank_0(change):
    import torch.distributed as dist

    def both(path):
        if dist.get_rank() == 0:
            change(path)
        dist.barrier()

    return both


def half(path):
    file = path / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:100])


def moved_as_by_a_death_between_renames(path):
    path.rename(path.with_name(path.name + ".previous"))
    path.with_name(path.name + ".writing").mkdir()


def without_metadata(path):
    (path / ".metadata").unlink()


def without_a_file(path):
    (path / "__0_0.distcp").unlink()


def never_finished(path):
    path.rename(path.with_name(path.name + ".writing"))


def test_a_death_between_the_two_renames_leaves_the_previous_one(ranks2, tmp_path):
    change = moved_as_by_a_death_between_renames
    assert ranks2.run(lambda: one_step(tmp_path / "step", before_load=on_rank_0(change))) == [1, 1]
    (tmp_path / "step").mkdir()
    ranks2.run(lambda: made().save(tmp_path / "step"))
    assert names(tmp_path) == ["step"]
    ranks2.run(lambda: made().load(tmp_path / "step"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (half, "step/__0_0.distcp holds 100 bytes, expected at least "),
        (
            without_metadata,
            "step is no whole saved step: it has no .metadata, which is written last. A save into it was",
        ),
        (without_a_file, "step lost its file __0_0.distcp; load another saved step"),
        (never_finished, "step does not exist; step.writing beside it was left by a save that was stopped and is not"),
        (shutil.rmtree, "step does not exist; expected the folder that step.save made"),
    ],
)
def test_what_is_not_whole_is_named_on_every_rank(ranks2, tmp_path, change, said):
    with pytest.raises(RankError, match=re.escape(said)) as error:
        ranks2.run(lambda: one_step(tmp_path / "step", before_load=on_rank_0(change)))
    assert "SavedStepError" in str(error.value)


def test_what_is_no_saved_step_is_not_replaced(ranks2, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("all of it")
    with pytest.raises(RankError, match="precious exists and is no whole saved step, so it is not replaced"):
        ranks2.run(lambda: made().save(tmp_path / "precious"))
    assert names(tmp_path / "precious") == ["thesis.txt"]


def test_ranks_that_see_different_disks_are_told_so(ranks2, tmp_path):
    def other_place():
        import torch.distributed as dist

        made().save(tmp_path / f"of rank {dist.get_rank()}")

    with pytest.raises(RankError, match=r"rank 1: .* made by rank 0, is not there; all ranks must see one file system"):
        ranks2.run(other_place)


def test_a_disk_that_cannot_be_written_is_one_error(ranks2):
    with pytest.raises(RankError, match=r"SavedStepError: .*/proc/step"):
        ranks2.run(lambda: made().save("/proc/step"))
