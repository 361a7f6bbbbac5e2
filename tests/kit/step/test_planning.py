"""Plans for ranks that do not exist, against steps that run and against schedules worked out by hand."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from small_models import GPT, next_token_loss

from kit.graph.record import Graph, Kind, Phase
from kit.step.compiled import compile_step
from kit.step.estimate import collective_seconds, estimate
from kit.step.hardware import Hardware, hardware_of
from kit.step.planning import plan
from kit.step.strategy import DDP, FSDP, HSDP, StrategyError

MACHINE = Hardware(
    name="by hand", flops_per_second=1e3, bytes_per_second=1e9, link_bytes_per_second=100.0,
    network_bytes_per_second=10.0, ranks_per_node=4, latency_seconds=0.0, sources="chosen for the arithmetic",
)  # fmt: skip


def batch():
    ids = torch.zeros(4, 17, dtype=torch.long)
    return ids[:, :-1], ids[:, 1:]


def real_plan(strategy, options):
    torch.manual_seed(0)
    model = GPT()
    return compile_step(
        model, torch.optim.AdamW(model.parameters()), next_token_loss, batch(), strategy=strategy, **options
    ).plan


@pytest.mark.parametrize("strategy", [DDP(), FSDP(bucket_mb=0.01), FSDP(bucket_mb=None)], ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"precision": "bf16", "clip_norm": 1.0, "accumulation": 2}], ids=["plain", "all"]
)
def test_a_plan_of_two_ranks_is_what_two_ranks_do(ranks2, strategy, options):
    planned = plan(GPT, next_token_loss, batch(), world=2, strategy=strategy, **options)
    real = ranks2.run(real_plan, strategy, options)[0]
    assert [(s.name, s.bytes_in, s.dtype, s.phase, s.module) for s in planned.sends] == [
        (s.name, s.bytes_in, s.dtype, s.phase, s.module) for s in real.sends
    ]
    assert (planned.node_count, planned.parameter_bytes, planned.state_bytes) == (
        real.node_count, real.parameter_bytes, real.state_bytes
    )  # fmt: skip


def test_shards_shrink_with_the_world_and_nothing_is_left_behind():
    kept = [plan(GPT, next_token_loss, batch(), world=world).parameter_bytes for world in (2, 4, 1024)]
    assert kept[1] == pytest.approx(kept[0] / 2, rel=0.02)
    assert kept[2] < kept[1]
    assert not dist.is_initialized()


def test_ranks_with_and_without_padding_send_the_same():
    first, last = (plan(GPT, next_token_loss, batch(), world=8, rank=rank) for rank in (0, 7))
    assert first.sends == last.sends


def test_hsdp_shards_within_a_node_and_needs_more_than_one():
    both = plan(GPT, next_token_loss, batch(), world=16, strategy="hsdp", hardware="h200")
    alone = plan(GPT, next_token_loss, batch(), world=8, strategy="fsdp", hardware="h200")
    assert both.parameter_bytes == alone.parameter_bytes
    with pytest.raises(StrategyError, match="HSDP on 8 ranks with 8 a node has no two axes"):
        plan(GPT, next_token_loss, batch(), world=8, strategy=HSDP())


def graph_of(rows):
    """Rows of (kind, target, seconds of compute at 1e3 FLOP/s, bytes out, inputs)."""
    edges = [(source, end) for end, row in enumerate(rows) for source in row[4]]
    count = len(rows)
    return Graph(
        name="by hand", names=tuple(f"n{i}" for i in range(count)), targets=tuple(row[1] for row in rows),
        kinds=tuple(row[0] for row in rows), phases=(Phase.FORWARD,) * count, modules=("",) * count,
        sources=("",) * count, shapes=("",) * count,
        groups=tuple("g" if row[0] is Kind.COLLECTIVE else "" for row in rows),
        parameter=("",) * count, bytes_out=np.array([row[3] for row in rows]), bytes_moved=np.zeros(count, np.int64),
        flops=np.array([row[2] * 1e3 for row in rows], float), storage=np.arange(count, dtype=np.int32),
        mutates=np.full(count, -1, np.int32), edge_from=np.array([e[0] for e in edges], np.int32),
        edge_to=np.array([e[1] for e in edges], np.int32),
    )  # fmt: skip


def test_two_lanes_as_worked_out_by_hand():
    reduce = "_c10d_functional.all_reduce.default"
    graph = graph_of([
        (Kind.INPUT, "x", 0, 0, ()),
        (Kind.COMPUTE, "a", 1.0, 200, (0,)),      # 0 - 1
        (Kind.COLLECTIVE, reduce, 0, 200, (1,)),  # 1 - 3: 2 ranks, 2 * 200 * 1/2 / 100 = 2 s
        (Kind.COMPUTE, "b", 0.5, 0, (1,)),        # 1 - 1.5
        (Kind.WAIT, "wait", 0, 200, (2,)),        # compute stands from 1.5 to 3: 1.5 s exposed
        (Kind.COLLECTIVE, reduce, 0, 100, (4,)),  # 3 - 4
        (Kind.COMPUTE, "c", 2.0, 0, (4,)),        # 3 - 5 hides it whole
        (Kind.WAIT, "wait", 0, 100, (5,)),
    ])  # fmt: skip
    guess = estimate(graph, MACHINE, {"g": 2})
    assert guess.seconds == pytest.approx(5.0)
    assert guess.compute_seconds == pytest.approx(3.5)
    assert guess.exposed_seconds == pytest.approx(1.5)
    assert [(s.start, s.end, s.exposed) for s in guess.spans] == [
        pytest.approx((1.0, 3.0, 1.5)), pytest.approx((3.0, 5.0, 0.0))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "ranks", "seconds"),
    [
        ("all_gather_into_tensor", 4, 400 * 3 / 4 / 100),
        ("all_reduce", 4, 2 * 400 * 3 / 4 / 100),
        ("reduce_scatter_tensor", 8, 400 * 7 / 8 / 10),  # more than a node: the network
        ("all_reduce", 1, 0.0),
    ],
)
def test_a_ring_passes_its_bytes_over_the_slowest_link(target, ranks, seconds):
    assert collective_seconds(target, 400, ranks, MACHINE) == pytest.approx(seconds)


def test_unknown_hardware_lists_the_known():
    with pytest.raises(
        ValueError, match=r"hardware 'abacus' is not known; expected one of 'h200', 'h100' or a kit\.Hardware"
    ):
        hardware_of("abacus")


def test_planning_on_a_rank_is_refused(ranks2):
    def wrong():
        try:
            plan(GPT, next_token_loss, batch(), world=4)
        except RuntimeError as error:
            return str(error)
        return "nothing was raised"

    for text in ranks2.run(wrong):
        assert text.startswith("this process is in a process group of 2 already; plan in the notebook itself")
