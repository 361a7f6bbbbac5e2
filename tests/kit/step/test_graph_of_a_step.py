"""What the whole-step graph contains: one graph, its collectives, where its nodes come from."""

from collections import Counter

import pytest
import torch
from small_models import GPT, next_token_loss

from kit.graph.record import Kind, Phase
from kit.step.compiled import compile_step
from kit.step.strategy import DDP, FSDP


def batch():
    ids = torch.randint(0, 61, (4, 17), generator=torch.Generator().manual_seed(0))
    return ids[:, :-1], ids[:, 1:]


def build(strategy, layers=1, accumulation=1):
    torch.manual_seed(0)
    model = GPT(layers=layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return compile_step(model, optimizer, next_token_loss, batch(), strategy=strategy, accumulation=accumulation)


def graphs_and_plan(strategy, accumulation=1, layers=1):
    step = build(strategy, layers, accumulation)
    return [stage.graph for stage in step.stages], step.plan


def collectives(graph):
    return Counter(
        t.split(".")[1] for t, kind in zip(graph.targets, graph.kinds, strict=True) if kind is Kind.COLLECTIVE
    )


def test_forward_backward_and_optimizer_are_in_one_graph(ranks2):
    (graphs, _), _ = ranks2.run(graphs_and_plan, DDP())
    assert all(graphs[-1].count_by_phase()[phase] > 10 for phase in Phase)


def test_bucketing_joins_one_all_reduce_for_each_parameter_into_one(ranks2):
    (graphs, plan), _ = ranks2.run(graphs_and_plan, DDP())
    parameters = len(list(GPT().parameters()))
    assert collectives(graphs[0]) == {"all_reduce": parameters + 1}  # and one for the loss
    assert collectives(graphs[-1]) == {"all_reduce": 2}
    assert plan.bytes_sent == sum(p.nbytes for p in GPT().parameters()) + 4


def test_fsdp_gathers_again_in_the_backward_only_when_it_reshards(ranks2):
    (_, resharding), _ = ranks2.run(graphs_and_plan, FSDP(bucket_mb=0.01))
    (_, keeping), _ = ranks2.run(graphs_and_plan, FSDP(bucket_mb=0.01, reshard_after_forward=False))
    late = [s for s in resharding.sends if s.name.startswith("all_gather") and s.phase == "backward"]
    assert late
    assert not [s for s in keeping.sends if s.name.startswith("all_gather") and s.phase == "backward"]


def test_each_micro_batch_gathers_for_itself_when_it_reshards(ranks2):
    (_, one), _ = ranks2.run(graphs_and_plan, FSDP(bucket_mb=None))
    (_, two), _ = ranks2.run(graphs_and_plan, FSDP(bucket_mb=None), 2)
    count = [sum(s.name.startswith("all_gather") for s in plan.sends) for plan in (one, two)]
    assert count[1] == 2 * count[0]


def test_buckets_keep_under_their_limit(ranks2):
    (_, plan), _ = ranks2.run(graphs_and_plan, DDP(bucket_mb=0.01))
    largest = max(p.nbytes for p in GPT().parameters())
    assert max(s.bytes_in for s in plan.sends) <= max(largest, 10_000)
    assert len(plan.sends) > 2


def test_reductions_start_before_the_backward_is_over(ranks2):
    (_, plan), _ = ranks2.run(graphs_and_plan, DDP(bucket_mb=0.01))
    assert any(send.nodes_hiding > 20 for send in plan.sends if send.phase == "backward")


@pytest.mark.parametrize("options", [{"precision": "bf16"}, {"accumulation": 2}], ids=str)
def test_casts_and_sums_of_gradients_hold_no_reduction_back(ranks2, options):
    def reductions():
        torch.manual_seed(0)
        model = GPT(layers=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plan = compile_step(model, optimizer, next_token_loss, batch(), strategy=FSDP(bucket_mb=0.004), **options).plan
        return [send.module for send in plan.sends if send.name.startswith("reduce_scatter")]

    order = ranks2.run(reductions)[0]
    # The last layers' gradients are ready first; the embedding's last.
    assert order[0] in ("head", "norm")
    assert order.index("blocks.1.down") < order.index("blocks.0.down")
    assert order[-1] in ("token", "(model)")


def test_nearly_every_node_knows_its_line(ranks2):
    (graphs, _), _ = ranks2.run(graphs_and_plan, FSDP(bucket_mb=0.01))
    graph = graphs[-1]

    def share(phase, kinds):
        rows = [n for n, k in enumerate(graph.kinds) if k in kinds and graph.phases[n] is phase]
        return sum("small_models.py" in graph.sources[n] for n in rows) / len(rows)

    assert share(Phase.FORWARD, {Kind.COMPUTE}) >= 0.9
    assert share(Phase.FORWARD, {Kind.COLLECTIVE}) == 1.0
    assert share(Phase.BACKWARD, {Kind.COMPUTE}) >= 0.75
    assert share(Phase.BACKWARD, {Kind.COLLECTIVE}) >= 0.9


def test_a_backward_node_carries_the_line_of_its_forward(ranks2):
    (graphs, _), _ = ranks2.run(graphs_and_plan, DDP(), 1, 2)
    graph = graphs[-1]
    rows = [n for n, target in enumerate(graph.targets) if target == "aten.gelu_backward.default"]
    assert [graph.modules[n] for n in rows] == ["blocks.1", "blocks.0"]
    assert all("F.gelu(self.up(self.norm2(x)))" in graph.sources[n] for n in rows)


def test_records_of_all_ranks_are_equal(ranks2):
    first, second = ranks2.run(graphs_and_plan, FSDP())
    assert first[0][-1].targets == second[0][-1].targets
    assert first[1] == second[1]
