"""A step after its ranks were aborted, stopped, and joined again."""

import threading
import time

import pytest
from small_models import Perceptron, next_token_loss
from torch.distributed.checkpoint import FileSystemReader

from kit.ranks import RankError
from kit.step.strategy import DDP, FSDP

BUILD = """
import signal, time
torch.manual_seed(0)
model = Perceptron()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ids = torch.randint(0, 61, (4, 17), generator=torch.Generator().manual_seed(rank))
batch = ids[:, :-1], ids[:, 1:]
step = kit.compile_step(model, optimizer, next_token_loss, batch, strategy=strategy)
"""


def build(ranks, strategy):
    ranks.push(Perceptron=Perceptron, next_token_loss=next_token_loss, strategy=strategy)
    ranks.execute(BUILD)


@pytest.mark.parametrize("strategy", [DDP(), FSDP(bucket_mb=0.01)], ids=str)
def test_a_step_goes_on_in_the_group_after_an_abort(ranks2, strategy):
    build(ranks2, strategy)
    ranks2.execute("before = [step(batch).item() for _ in range(3)]")
    epoch = ranks2.epoch
    with pytest.raises(RankError):
        ranks2.execute("if rank == 1: raise ValueError('broken')\ndist.all_reduce(torch.ones(1))")
    assert ranks2.epoch == epoch + 1
    ranks2.execute("after = [step(batch).item() for _ in range(3)]")
    # The same six steps without an abort, in a model of their own.
    ranks2.execute("broken = before + after")
    build(ranks2, strategy)
    ranks2.execute("whole = [step(batch).item() for _ in range(6)]")
    assert ranks2.pull("broken") == ranks2.pull("whole")


def test_shards_show_the_mesh_of_the_new_group(ranks2):
    build(ranks2, FSDP())
    with pytest.raises(RankError):
        ranks2.execute("if rank == 1: raise ValueError('broken')\ndist.all_reduce(torch.ones(1))")
    ranks2.execute("step(batch)")
    shapes = ranks2.execute("weight = model.head.weight\nweight.full_tensor().shape, len(optimizer.state)")
    assert shapes == [((61, 16), len(list(Perceptron().parameters())))] * 2
    assert ranks2.execute("optimizer.state[weight]['exp_avg'].full_tensor().shape") == [(61, 16)] * 2
    ranks2.execute("kit.compile_step(model, optimizer, next_token_loss, batch, strategy=strategy)(batch)")


def test_stop_during_training_leaves_all_ranks_at_one_step_and_training_goes_on(ranks2):
    build(ranks2, DDP())
    loop = "while True:\n    step(batch)\n    time.sleep(0.01 + 0.03 * rank)"
    stopper = threading.Thread(target=lambda: (time.sleep(1.0), ranks2.interrupt()))
    stopper.start()
    with pytest.raises(KeyboardInterrupt):
        ranks2.execute(loop)
    stopper.join()
    ranks2.execute("step(batch)")
    first, second = ranks2.execute("[step.steps_done, model.head.weight.sum().item()]")
    assert first == second
    assert first[0] > 3


def test_an_interrupt_during_a_step_is_raised_at_its_end(ranks2):
    build(ranks2, DDP())
    ranks2.execute("""
from dataclasses import replace
seen = []
def interrupted(*inputs):
    if not seen:
        seen.append("signal")
        signal.raise_signal(signal.SIGINT)
        seen.append("went on")
    return run(*inputs)
first = step._variants.first
run = first.run
step._variants.built[0] = replace(first, run=interrupted)
try:
    step(batch)
except KeyboardInterrupt:
    seen.append("raised")
""")
    assert ranks2.pull("seen") == [["signal", "went on", "raised"]] * 2
    assert ranks2.pull("step.steps_done") == [1, 1]


def test_ranks_stopped_at_different_steps_are_told_so(ranks2):
    build(ranks2, DDP())
    ranks2.execute("step(batch)")
    with pytest.raises(RankError):
        ranks2.execute("if rank == 1: raise ValueError('broken')\ndist.all_reduce(torch.ones(1))")
    ranks2.execute("if rank == 1: step._life.done += 1  # as when rank 1 alone saw the last reduction arrive")
    with pytest.raises(RankError, match="rank 0 has finished step 1; rank 1 has finished step 2: parameters are of"):
        ranks2.execute("step(batch)")


def test_a_step_over_a_mesh_of_the_user_names_the_call_that_builds_it_again(ranks2):
    build(ranks2, DDP())
    ranks2.execute("""
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
model = Perceptron()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
step = kit.compile_step(model, optimizer, next_token_loss, batch, mesh=mesh)
step(batch)
""")
    with pytest.raises(RankError):
        ranks2.execute("if rank == 1: raise ValueError('broken')\ndist.all_reduce(torch.ones(1))")
    with pytest.raises(
        RankError, match=r"a mesh whose process group is gone; .* call kit\.compile_step\(\.\.\., mesh=mesh\)"
    ):
        ranks2.execute("step(batch)")


def test_ranks_stopped_at_different_steps_go_on_from_what_was_saved(ranks2, tmp_path):
    build(ranks2, FSDP())
    ranks2.push(path=tmp_path / "step")
    ranks2.execute("step(batch); step.save(path); whole = [step(batch).item() for _ in range(2)]")
    with pytest.raises(RankError):
        ranks2.execute("if rank == 1: raise ValueError('broken')\ndist.all_reduce(torch.ones(1))")
    ranks2.execute("if rank == 1: step._life.done += 1  # as when rank 1 alone saw the last reduction arrive")
    with pytest.raises(RankError, match="parameters are of different steps"):
        ranks2.execute("step.save(path)")
    ranks2.execute("step.load(path); again = [step(batch).item() for _ in range(2)]")
    assert ranks2.pull("again") == ranks2.pull("whole")
    assert ranks2.pull("step.steps_done") == [3, 3]


def test_a_step_whose_load_failed_midway_is_not_trained_on(ranks2, tmp_path):
    build(ranks2, DDP())
    ranks2.push(path=tmp_path / "step")
    ranks2.execute("step.save(path); kept = step(batch).item()")
    stored = FileSystemReader(tmp_path / "step").read_metadata().storage_data
    place = next(place for index, place in stored.items() if index.fqn == "model.head.weight")
    file = tmp_path / "step" / place.relative_path
    whole = file.read_bytes()
    end = place.offset + place.length
    file.write_bytes(whole[: place.offset] + b"\xff" * place.length + whole[end:])  # of the right length, and wrong
    with pytest.raises(RankError, match=r"SavedStepError: .*step could not be read \(rank "):
        ranks2.execute("step.load(path)")
    for call in ("step(batch)", "step.save(path)"):
        with pytest.raises(RankError, match=r"InterruptedStepError: loading .*step failed midway: .* load again"):
            ranks2.execute(call)
    file.write_bytes(whole)
    assert ranks2.execute("step.load(path)\nstep(batch).item() == kept") == [True, True]
