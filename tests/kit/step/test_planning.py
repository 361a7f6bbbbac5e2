"""Plans for ranks that do not exist, against steps that run and against schedules worked out by hand."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from small_models import GPT, next_token_loss

import kit
from kit._torch import collectives
from kit.graph.record import Graph, Kind, Phase
from kit.step.compiled import compile_step
from kit.step.estimate import MeasuredTimesError, collective_seconds, estimate
from kit.step.hardware import Hardware, hardware_of
from kit.step.planning import plan
from kit.step.record import Measured
from kit.step.strategy import DDP, FSDP, HSDP, StrategyError

MACHINE = Hardware(
    name="by hand", flops_per_second=1e3, bytes_per_second=1e9, link_bytes_per_second=100.0,
    network_bytes_per_second=10.0, ranks_per_node=4, latency_seconds=0.0, sources="chosen for the arithmetic",
)  # fmt: skip

_ALL = {"precision": "bf16", "clip_norm": 1.0, "accumulation": 2}


def batch():
    ids = torch.zeros(4, 17, dtype=torch.long)
    return ids[:, :-1], ids[:, 1:]


def real_plan(strategy, options):
    torch.manual_seed(0)
    model = GPT()
    return compile_step(
        model, torch.optim.AdamW(model.parameters()), next_token_loss, batch(), strategy=strategy, **options
    ).plan


@pytest.mark.parametrize(
    ("strategy", "options"),
    [(DDP(), {}), (FSDP(bucket_mb=None), {}), (DDP(), _ALL), (FSDP(bucket_mb=0.01), _ALL)],
    ids=["ddp", "fsdp", "ddp, all options", "fsdp, all options"],
)
def test_a_plan_of_two_ranks_is_what_two_ranks_do(ranks2, strategy, options):
    # A plan is for a backend that has gathers in flight beside each other; gloo, which these ranks use, has not.
    with patch.object(collectives, "gathers_may_overlap", lambda *_: False):
        planned = plan(GPT, next_token_loss, batch(), world=2, strategy=strategy, **options)
    real = ranks2.run(real_plan, strategy, options)[0]
    assert [(s.name, s.bytes_in, s.dtype, s.phase, s.module) for s in planned.sends] == [
        (s.name, s.bytes_in, s.dtype, s.phase, s.module) for s in real.sends
    ]
    assert (planned.node_count, planned.parameter_bytes, planned.state_bytes) == (
        real.node_count, real.parameter_bytes, real.state_bytes
    )  # fmt: skip
    assert real.check()
    assert planned.findings == real.findings


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
    assert [(b.phase, b.start, b.end) for b in guess.compute] == [
        ("forward", 0.0, pytest.approx(1.5)), ("waiting", pytest.approx(1.5), 3.0), ("forward", 3.0, 5.0)
    ]  # fmt: skip


def test_a_kernel_costs_its_start_and_attention_has_a_rate_of_its_own():
    graph = graph_of([
        (Kind.INPUT, "x", 0, 0, ()),
        (Kind.COMPUTE, "aten.mm.default", 1.0, 200, (0,)),
        (Kind.COMPUTE, "aten._scaled_dot_product_flash_attention.default", 0.1, 200, (1,)),  # 100 FLOPs
    ])  # fmt: skip
    machine = replace(MACHINE, kernel_seconds=0.5, attention_flops_per_second=50.0)
    assert estimate(graph, machine, {}).compute_seconds == pytest.approx((1.0 + 0.5) + (2.0 + 0.5))
    with pytest.raises(ValueError, match="no negative time"):
        replace(MACHINE, kernel_seconds=-1.0)


def test_a_fusing_executor_keeps_and_moves_less_and_an_unknown_one_is_refused():
    by_node, joined = (plan(GPT, next_token_loss, batch(), world=2, executor=e).estimate for e in ("eager", "inductor"))
    assert joined.peak_bytes < by_node.peak_bytes
    assert joined.compute_seconds < by_node.compute_seconds
    with pytest.raises(ValueError, match="executor 'tvm' is not known; expected one of 'eager'"):
        plan(GPT, next_token_loss, batch(), world=2, executor="tvm")


def test_measured_times_stand_in_for_modelled_ones():
    graph = graph_of([
        (Kind.INPUT, "x", 0, 0, ()),
        (Kind.COMPUTE, "a", 1.0, 200, (0,)),
        (Kind.COLLECTIVE, "_c10d_functional.all_reduce.default", 0, 200, (1,)),
        (Kind.COMPUTE, "b", 3.0, 0, (1,)),
        (Kind.WAIT, "wait", 0, 200, (2,)),
    ])  # fmt: skip
    measured = Measured(source="a stop-watch", collectives=(("all_reduce", 7.0),), compute_seconds=8.0)
    guess = estimate(graph, MACHINE, {"g": 2}, measured)
    # Compute of 8 s is shared out as 1 : 3, so the collective starts at 2 s and ends at 9 s.
    assert (guess.spans[0].start, guess.spans[0].end, guess.spans[0].exposed) == pytest.approx((2.0, 9.0, 1.0))
    assert guess.measured
    assert guess.sources.startswith("a stop-watch; ")
    wrong = Measured(source="a stop-watch", collectives=(("all_gather", 7.0),))
    said = r"a stop-watch: a step with \{'all_gather': 1\} collectives was measured, this one has \{'all_reduce': 1\}"
    with pytest.raises(MeasuredTimesError, match=said):
        estimate(graph, MACHINE, {"g": 2}, wrong)


def test_a_collective_of_one_rank_may_have_no_kernel():
    graph = graph_of([
        (Kind.INPUT, "x", 0, 0, ()),
        (Kind.COMPUTE, "a", 1.0, 200, (0,)),
        (Kind.COLLECTIVE, "_c10d_functional.all_reduce.default", 0, 200, (1,)),
        (Kind.WAIT, "wait", 0, 200, (2,)),
    ])  # fmt: skip
    for seen, seconds in (((), 8.0), ((("all_reduce", 1.0),), 9.0)):  # NCCL, gloo
        measured = Measured(source="a stop-watch", collectives=seen, compute_seconds=8.0)
        assert estimate(graph, MACHINE, {"g": 1}, measured).seconds == pytest.approx(seconds)
    with pytest.raises(MeasuredTimesError, match=r"a step with \{\} collectives was measured"):
        estimate(graph, MACHINE, {"g": 2}, Measured(source="a stop-watch", collectives=()))


def plans_of_a_real_step():
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters())
    step = compile_step(model, optimizer, next_token_loss, batch(), strategy=FSDP(bucket_mb=0.01))
    timeline = kit.profile(step, [batch()] * 5, warmup=2, active=3)
    return step.plan, kit.plan_on(step, MACHINE), kit.plan_on(step, timeline=timeline)


def test_a_compiled_step_gets_times_of_a_profile_of_itself(ranks2):
    plain, modelled, measured = ranks2.run(plans_of_a_real_step)[0]
    assert plain.estimate is None
    assert len(modelled.estimate.spans) == len(measured.estimate.spans) == len(plain.sends)
    assert modelled.estimate.hardware == "by hand"
    guess = measured.estimate
    assert all(span.end - span.start > 1e-6 for span in guess.spans)
    lane = sum(block.end - block.start for block in guess.compute if block.phase != "waiting")
    assert lane == pytest.approx(guess.compute_seconds)
    assert sum(span.exposed for span in guess.spans) == pytest.approx(guess.exposed_seconds)
    assert guess.seconds == pytest.approx(guess.compute_seconds + guess.exposed_seconds)


def test_every_collective_names_what_it_carries():
    made = plan(GPT, next_token_loss, batch(), world=16, strategy=HSDP(bucket_mb=0.01))
    names = {name for name, _ in GPT().named_parameters()}
    for kind, ranks in (("all_gather_into_tensor", 8), ("reduce_scatter_tensor", 8), ("all_reduce", 2)):
        mine = [send for send in made.sends if send.name == kind and send.ranks == ranks]
        assert {name for send in mine for name in send.parameters} - {"(loss)"} == names, kind


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
