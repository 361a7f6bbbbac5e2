"""Ranks on GPUs: control comes back from NCCL, the right rank is named, GPU tensors keep their values.

`one`: one NCCL rank, so most of it can be seen on one GPU. `pair`: two ranks, each on a GPU of its own. Seconds until
control came back are kept in ranks_seconds.json of the folder $OUT, when there is one.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from kit.ranks import engine
from kit.ranks.errors import DeadRankError, InterruptedRanksError, LaunchError, RankError, RankTimeoutError

ROOT = Path(__file__).parents[2]
CONTROL_SECONDS = 1.2
SECONDS_A_TEST = 120
KEPT = "kept = torch.arange(1000.0, device=device) + rank"
SUM = "y = torch.full((1,), rank + 1.0, device=device)\ndist.all_reduce(y)\ny.item()"
STUCK = {
    "synchronize": "x = torch.ones(1 << 20, device=device)\ndist.all_reduce(x)\ntorch.cuda.synchronize()",
    "item of one element": "x = torch.ones(1, device=device)\ndist.all_reduce(x)\nx.item()",
    "barrier": "dist.barrier()",
    "async wait": "work = dist.all_reduce(torch.ones(8, device=device), async_op=True)\nwork.wait()\n"
    "torch.cuda.synchronize()",
    "receive": "x = torch.ones(8, device=device)\ndist.recv(x, src=1)\nx.sum().item()",
}  # fmt: skip
_seconds: dict[str, float] = {}


@pytest.fixture(autouse=True)
def time_limit():
    def over(number, frame):
        raise TimeoutError(f"the test took more than {SECONDS_A_TEST} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(SECONDS_A_TEST)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module", autouse=True)
def nothing_stays():
    yield
    engine.shutdown()
    if _seconds and os.environ.get("OUT"):
        found = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(0), "seconds": _seconds}
        Path(os.environ["OUT"], "ranks_seconds.json").write_text(json.dumps(found, indent=1))


def need(gpus):
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"{torch.cuda.device_count()} GPUs here, this needs {gpus}")


def group_of(world_size):
    need(world_size)
    with engine.launch(world_size, backend="nccl") as ranks:
        ranks.execute(KEPT)
        yield ranks


@pytest.fixture
def one():
    yield from group_of(1)


@pytest.fixture
def pair():
    yield from group_of(2)


@contextmanager
def control_within(seconds, name):
    begun = time.monotonic()
    yield
    took = _seconds[name] = round(time.monotonic() - begun, 3)
    assert took < seconds, f"control came back after {took:.2f} s"


def later(seconds, action, *args):
    timer = threading.Timer(seconds, action, args)
    timer.start()
    return timer


def assert_all_is_well(ranks):
    """The tensors are what they were, and the next collective is right."""
    size = ranks.world_size
    assert ranks.execute("bool((kept == torch.arange(1000.0, device=device) + rank).all())") == [True] * size
    assert ranks.execute(SUM) == [size * (size + 1) / 2] * size


def breaking(stuck):
    """A cell in which rank 1 raises when rank 0 is surely stuck."""
    indented = "".join(f"    {line}\n" for line in stuck.split("\n"))
    return (
        "import time\nreturned = False\n"
        f"if rank == 1:\n    time.sleep(0.5)\n    at = time.time()\n    raise ValueError('boom')\nelse:\n{indented}"
        "returned = True\n'a value'"
    )


@pytest.mark.parametrize("where", STUCK)
def test_a_rank_that_raises_gives_control_back_and_is_named(pair, where):
    with pytest.raises(RankError) as caught:
        pair.execute(breaking(STUCK[where]), filename="<the cell>")
    took = time.time() - pair.pull("at", rank=1)  # the pull waits for the new group: an upper bound
    _seconds[f"raise to the next call, stuck in {where}"] = round(took, 3)
    error = caught.value
    assert error.rank == 1
    assert str(error).startswith("rank 1: ValueError: boom\n    <the cell>, line 6: raise ValueError('boom')\n")
    assert [failure.rank for failure in error.consequences] == [0]
    assert error.consequences[0].frames[-1].file == "<the cell>"
    assert_all_is_well(pair)


@pytest.mark.parametrize("where", ["synchronize", "item of one element"])
def test_control_is_back_within_the_promised_time(pair, where):
    with pytest.raises(RankError) as caught, control_within(CONTROL_SECONDS + 0.5, f"raise (after 0.5 s) in {where}"):
        pair.execute(breaking(STUCK[where]))
    assert caught.value.rank == 1
    assert_all_is_well(pair)


@pytest.mark.parametrize("where", ["synchronize", "item of one element"])
def test_an_aborted_command_is_an_error_even_when_its_stuck_call_returned(pair, where):
    with pytest.raises(RankError) as caught:
        pair.execute(breaking(STUCK[where]))
    assert {failure.rank for failure in caught.value.failures} == {0, 1}, "rank 0 must not answer with a value"
    assert caught.value.consequences[0].folded
    returned = pair.pull("returned", rank=0)
    _seconds[f"the stuck {where} returned normally (1) or raised (0)"] = float(returned)


def test_two_aborts_in_a_row(pair):
    for _ in range(2):
        with pytest.raises(RankError) as caught:
            pair.execute(breaking(STUCK["synchronize"]))
        assert caught.value.rank == 1
    assert pair.epoch == 2
    assert_all_is_well(pair)


def test_ctrl_c_frees_a_rank_in_a_collective_and_one_in_python(pair):
    later(0.5, os.kill, os.getpid(), signal.SIGINT)
    with pytest.raises(InterruptedRanksError) as caught, control_within(4.0, "stop button (after 0.5 s)"):
        pair.execute(f"if rank == 1:\n    while True: pass\n{STUCK['item of one element']}", filename="<the cell>")
    assert {failure.rank for failure in caught.value.failures} == {0, 1}
    assert_all_is_well(pair)


def test_a_time_limit_frees_a_rank_that_waits_for_one_that_never_comes(pair):
    with pytest.raises(RankTimeoutError) as caught:
        pair.execute(
            "if rank == 0:\n    x = torch.ones(1, device=device)\n    dist.all_reduce(x)\n    x.item()", timeout=1
        )
    assert caught.value.rank == 0
    assert_all_is_well(pair)


SEVERAL = (
    "from torch.distributed.device_mesh import init_device_mesh\n"
    "mesh = init_device_mesh('cuda', (world_size, 1), mesh_dim_names=('dp', 'tp'))\n"
    "extra = dist.new_group(list(range(world_size)))\n"
    "groups = [None, mesh['dp'].get_group(), mesh['tp'].get_group(), extra]\n"
    "for group in groups:\n    dist.all_reduce(torch.ones(4, device=device), group=group)\n"
    "torch.cuda.synchronize()"
)


def test_several_communicators_are_aborted_together(pair):
    pair.execute(SEVERAL)
    stuck = (
        "works = [dist.all_reduce(torch.ones(1 << 20, device=device), group=g, async_op=True) for g in groups]\n"
        "torch.cuda.synchronize()"
    )
    with pytest.raises(RankError) as caught, control_within(4.0, "raise (after 0.5 s), 4 communicators"):
        pair.execute(breaking(stuck))
    assert caught.value.rank == 1
    assert_all_is_well(pair)
    pair.execute(SEVERAL)


def test_several_communicators_of_one_rank_are_aborted_together(one):
    one.execute(SEVERAL)
    later(0.3, one.interrupt)
    with pytest.raises(InterruptedRanksError), control_within(4.0, "stop (after 0.3 s), one rank, 4 communicators"):
        one.execute("import time\ntime.sleep(50)")
    assert_all_is_well(one)
    one.execute(SEVERAL)


def test_a_killed_rank_is_named_and_replaced(pair):
    later(0.7, os.kill, pair.pids[1], signal.SIGKILL)
    stuck = STUCK["item of one element"].replace("\n", "\n    ")
    with pytest.raises(RankError) as caught, control_within(4.0, "SIGKILL (after 0.7 s) to control"):
        pair.execute(f"import time\nif rank == 1:\n    time.sleep(50)\nelse:\n    {stuck}")
    assert caught.value.rank == 1
    assert str(caught.value).startswith("rank 1: died: SIGKILL")
    assert pair.alive == (0,)
    with pytest.raises(DeadRankError):
        pair.execute("1")
    assert pair.execute("kept.sum().item()", ranks=[0]) == [499500.0], "the survivor keeps its tensors meanwhile"
    begun = time.monotonic()
    pair.replace(1)
    _seconds["replace"] = round(time.monotonic() - begun, 3)
    assert pair.pull("'kept' in globals()") == [True, False]
    pair.execute(KEPT, ranks=[1])
    assert_all_is_well(pair)


def test_the_only_rank_killed_is_replaced(one):
    with pytest.raises(RankError, match="rank 0: died: SIGKILL"):
        one.execute("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    one.replace(0)
    one.execute(KEPT)
    assert_all_is_well(one)


def test_an_exception_of_one_rank_costs_no_tensor(one):
    with pytest.raises(RankError, match="rank 0: ValueError: boom"):
        one.execute("y = kept * 2\nraise ValueError('boom')")
    assert one.execute("y.sum().item()") == [999000.0]
    assert_all_is_well(one)


def test_a_loop_of_kernels_is_stopped_by_a_time_limit(one):
    with pytest.raises(RankTimeoutError) as caught, control_within(4.0, "time limit 0.5 s in a loop of kernels"):
        one.execute("while True:\n    (kept @ kept).item()", timeout=0.5, filename="<loop>")
    assert caught.value.causes[0].frames[-1].file == "<loop>"
    assert_all_is_well(one)


def test_a_training_loop_goes_on_after_stop(one):
    one.execute(
        "import time\nfrom torch.nn.parallel import DistributedDataParallel as DDP\ntorch.manual_seed(0)\n"
        "model = torch.nn.Linear(64, 64).to(device)\nnet = DDP(model)\n"
        "opt = torch.optim.AdamW(net.parameters())\ndone = 0\n"
        "def step():\n    opt.zero_grad()\n    net(torch.randn(8, 64, device=device)).square().sum().backward()\n"
        "    opt.step()"
    )
    later(0.7, one.interrupt)
    with pytest.raises(InterruptedRanksError):
        one.execute("while True:\n    step()\n    done += 1\n    time.sleep(0.01)")
    assert one.pull("done", rank=0) > 0
    one.execute("net = DDP(model)\nstep()\ntorch.cuda.synchronize()")
    assert one.pull("bool(model.weight.isfinite().all())") == [True]
    assert_all_is_well(one)


def test_aborts_leave_no_gpu_memory_behind(pair):
    def free_bytes():
        return pair.execute("torch.cuda.synchronize()\ntorch.cuda.mem_get_info()[0]")

    def abort():
        with pytest.raises(RankError):
            pair.execute(f"if rank == 1: raise ValueError('boom')\n{STUCK['synchronize']}")
        assert_all_is_well(pair)

    for _ in range(2):
        abort()
    before = free_bytes()
    for _ in range(8):
        abort()
    grown = max(first - last for first, last in zip(before, free_bytes(), strict=True))
    _seconds["GPU bytes more after 8 aborts"] = grown
    assert grown < 64e6, "eight communicators would take hundreds of megabytes"


def test_unequal_shapes_are_refused_on_all_ranks_when_asked_for():
    need(2)
    with engine.launch(2, backend="nccl", check_collectives=True) as ranks:
        ranks.execute(KEPT)
        with pytest.raises(RankError, match="ranks disagree on a collective"):
            ranks.execute("dist.all_reduce(torch.ones(4 + rank, device=device))")
        assert ranks.epoch == 0
        assert_all_is_well(ranks)


def test_each_rank_has_its_own_gpu(pair):
    found = pair.execute("str(device), torch.cuda.current_device(), torch.ones(1).cuda().device.index")
    assert found == [("cuda:0", 0, 0), ("cuda:1", 1, 1)]
    assert len(set(pair.execute("str(torch.cuda.get_device_properties(device).uuid)"))) == 2


def test_too_few_gpus_is_an_error_that_offers_gloo():
    need(1)
    gpus = torch.cuda.device_count()
    with pytest.raises(LaunchError) as caught:
        engine.launch(gpus + 1, backend="nccl")
    assert f"this machine shows {gpus} GPU" in str(caught.value)
    assert f"Use kit.launch({gpus + 1}) (gloo, on the CPU)" in str(caught.value)
    assert (f"kit.launch({gpus}, backend='nccl')" in str(caught.value)) == (gpus > 1)


def test_tensors_come_to_the_notebook_on_the_cpu_and_without_cuda_there(tmp_path):
    need(1)
    done = run_script(
        tmp_path,
        "import kit, torch\nranks = kit.launch(1, backend='nccl')\n"
        "ranks.push(x=torch.arange(3.0))\nranks.execute('x = x.to(device) * 2')\n"
        "(x,) = ranks.pull('x')\nprint(x.tolist(), x.device, torch.cuda.is_initialized())\n",
    )
    assert done == "[0.0, 2.0, 4.0] cpu False\n"


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_notebook_that_has_used_cuda_before_starts_ranks(tmp_path, world_size):
    need(world_size)
    done = run_script(
        tmp_path,
        "import torch\nmine = torch.ones(1000, device='cuda')\nmine.sum().item()\nimport kit\n"
        f"ranks = kit.launch({world_size}, backend='nccl')\n"
        f"print(ranks.execute({SUM!r}))\n"
        "try:\n    ranks.execute('raise ValueError(rank)')\nexcept kit.RankError as error:\n    print(error.rank)\n"
        f"print(ranks.execute({SUM!r}), mine.sum().item())\n",
    )
    total = [world_size * (world_size + 1) / 2] * world_size
    assert done.splitlines()[0] == str(total)
    assert done.splitlines()[-1] == f"{total} 1000.0"


def run_script(folder, code):
    """What a script in a fresh process prints."""
    script = folder / "script.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


GRAPH = (
    "x = torch.ones(8, device=device)\ndist.all_reduce(x)\ntorch.cuda.synchronize()\n"
    "graph = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(graph):\n    dist.all_reduce(x)\n"
    "graph.replay()\ntorch.cuda.synchronize()"
)


@pytest.mark.parametrize("world_size", [1, 2])
def test_closing_with_a_captured_graph_of_collectives_alive_does_not_hang(world_size):
    need(world_size)
    ranks = engine.launch(world_size, backend="nccl")
    try:
        ranks.execute(GRAPH, timeout=60)
        with control_within(5.0, f"close with a CUDA graph alive, {world_size} ranks"):
            ranks.close()
    finally:
        ranks.close()


def test_stop_with_a_captured_graph_of_collectives_alive_gives_control_back(one):
    one.execute(GRAPH, timeout=60)
    later(0.3, one.interrupt)
    with pytest.raises(InterruptedRanksError), control_within(4.0, "stop (after 0.3 s) with a CUDA graph alive"):
        one.execute("import time\ntime.sleep(50)")
    assert_all_is_well(one)


def test_a_rank_that_raises_while_another_replays_a_graph_gives_control_back(pair):
    pair.execute(GRAPH, timeout=60)
    with pytest.raises(RankError) as caught, control_within(6.0, "raise (after 0.5 s), stuck in a replay"):
        pair.execute(breaking("graph.replay()\ntorch.cuda.synchronize()"))
    assert caught.value.rank == 1
    pair.execute("del graph")
    assert_all_is_well(pair)


def test_two_gloo_ranks_share_a_gpu_and_one_that_raises_costs_no_tensor():
    need(1)
    with engine.launch(2, backend="gloo", device="cuda") as ranks:
        ranks.execute(KEPT)
        with pytest.raises(RankError) as caught, control_within(1.0, "raise to control, gloo ranks on one GPU"):
            ranks.execute("if rank == 1: raise ValueError('boom')\ndist.all_reduce(torch.ones(1))")
        assert caught.value.rank == 1
        assert ranks.execute("kept.sum().item()") == [499500.0, 500500.0]
        assert ranks.execute("y = torch.ones(1)\ndist.all_reduce(y)\ny.item()") == [2.0, 2.0]
