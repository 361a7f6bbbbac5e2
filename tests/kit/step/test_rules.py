"""Rules of a step's order: proved on graphs that are right, broken with a path on graphs broken on purpose."""

import copy
from unittest.mock import patch

import pytest
import torch
from small_models import GPT, next_token_loss

from kit._torch import collectives
from kit.archive import load, save
from kit.step import rules
from kit.step.lower import Draft
from kit.step.passes.chains import add
from kit.step.planning import plan
from kit.step.provenance import AGAIN
from kit.step.record import Check, Plan
from kit.step.reductions import custom
from kit.step.rules import findings_of
from kit.step.strategy import DDP, FSDP, HSDP

MEMORY = {"checkpointing": "blocks.*", "accumulation": 2}


def batch():
    ids = torch.zeros(4, 17, dtype=torch.long)
    return ids[:, :-1], ids[:, 1:]


def two_blocks(**options):
    return GPT(layers=2, **options)


def lowered(strategy, *, world=2, make=two_blocks, loss=next_token_loss, **options):
    """The graphs of a step as planning makes them, and the plan."""
    kept = []

    def keep(draft, choice):
        kept.append(whole(draft, choice))
        return kept[0]

    whole = Draft.lowered
    with patch.object(Draft, "lowered", keep):
        made = plan(make, loss, batch(), world=world, strategy=strategy, **options)
    return kept[0], made


@pytest.fixture(scope="module")
def ddp():
    return lowered(DDP(bucket_mb=None))


@pytest.fixture(scope="module")
def fsdp():
    return lowered(FSDP(bucket_mb=0.01), **MEMORY)


@pytest.fixture(scope="module")
def hsdp():
    return lowered(HSDP(bucket_mb=None), world=16)


class Broken:
    """A copy of a step's graph to be broken, and what the rules then find."""

    def __init__(self, made):
        self._step, self._plan = made
        self.module = copy.deepcopy(self._step.module)
        self.nodes = list(self.module.graph.nodes)

    def sum_of(self, parameter, *, group=None):
        """The reduction that carries a parameter, and the wait for it."""
        for node in self.nodes:
            is_sum = node.target in (collectives.ALL_REDUCE, collectives.REDUCE_SCATTER)
            if is_sum and parameter in rules.carried(node) and group in (None, node.args[-1]):
                return node, next(iter(node.users))
        raise LookupError(parameter)

    def last_write(self, parameter):
        holder = self.holder(parameter)
        return [node for node in self.nodes if holder in node.all_input_nodes and str(node.target).endswith("_.List")][
            -1
        ]

    def holder(self, parameter):
        names = dict(zip(self._step.inputs.names(), self.nodes, strict=False))
        return names[parameter]

    def groups(self):
        return {send.group: send.ranks for send in self._plan.sends}

    def check(self, *, groups=None):
        trained = [slot.name for slot in self._step.inputs.slots]
        found = findings_of(
            self.module, inputs=self._step.inputs.names(), trained=trained, groups=groups or self.groups()
        )
        return {finding.rule: finding for finding in found}


def broken_rules(found):
    return {rule for rule, finding in found.items() if finding.breaches}


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        (DDP(), MEMORY),
        (DDP(bucket_mb=0.01), {"clip_norm": 1.0, "precision": "bf16"}),
        (FSDP(reshard_after_forward=False), {"clip_norm": 1.0}),
        (FSDP(bucket_mb=0.01), {**MEMORY, "clip_norm": 1.0, "precision": "bf16"}),
        (HSDP(bucket_mb=0.01), {**MEMORY, "world": 16, "clip_norm": 1.0}),
    ],
    ids=str,
)
def test_every_rule_holds_for_steps_that_train_right(strategy, options):
    _, made = lowered(strategy, **options)
    proved = {finding.rule: finding.proved for finding in made.findings}
    assert made.check(), [breach for finding in made.findings for breach in finding.breaches]
    parameters = len(list(two_blocks().parameters()))
    assert proved[rules.ONCE] == proved[rules.BEFORE_UPDATE] == parameters
    assert proved[rules.NEXT_GATHER] >= parameters
    reads_again = "checkpointing" in options or getattr(strategy, "reshard_after_forward", False)
    assert bool(proved[rules.RECOMPUTE]) is reads_again


def test_a_loss_of_sum_and_count_and_tied_weights_hold_too():
    def weighed(model, pair):
        ids, targets = pair
        total = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), reduction="sum")
        return total, (targets != -1).sum()

    _, made = lowered(FSDP(), make=lambda: two_blocks(tied=True), loss=weighed, clip_norm=1.0)
    assert made.check()


def test_what_is_computed_again_is_marked_with_its_own_line(fsdp):
    step, _ = fsdp
    again = [custom(node) for node in step.module.graph.nodes if AGAIN in custom(node)]
    assert {note["kit_phase"] for note in again} == {"backward"}
    assert {"blocks.0.qkv", "blocks.1.up"} <= {note["kit_module"] for note in again}
    assert all("small_models.py" in note["kit_source"] for note in again)


def test_an_update_before_its_reduction_is_found_with_both_places(ddp):
    graph = Broken(ddp)
    reduction, _ = graph.sum_of("head.weight")
    reduction.prepend(graph.last_write("head.weight"))
    found = graph.check()
    assert {rules.BEFORE_UPDATE, rules.EXISTS} <= broken_rules(found)
    breach = next(b for b in found[rules.BEFORE_UPDATE].breaches if b.what.startswith("head.weight is updated at node"))
    assert [place.node for place in breach.path][-1] == reduction.name
    assert "small_models.py" in breach.path[-1].source


def test_a_value_read_before_it_exists_is_shown_from_its_collective_on(ddp):
    graph = Broken(ddp)
    reduction, wait = graph.sum_of("head.weight")
    reader = next(iter(wait.users))
    reduction.prepend(reader)
    said = f"{reader.name} reads {wait.name} at node "
    (breach,) = [b for b in graph.check()[rules.EXISTS].breaches if b.what.startswith(said)]
    assert [place.node for place in breach.path] == [reduction.name, wait.name, reader.name]


def test_a_dropped_reduction_is_found_for_its_parameter_only_with_the_path_of_the_gradient(ddp):
    graph = Broken(ddp)
    reduction, wait = graph.sum_of("blocks.1.up.weight")
    wait.replace_all_uses_with(reduction.args[0])
    found = graph.check()
    assert broken_rules(found) == {rules.ONCE, rules.BEFORE_UPDATE}
    (breach,) = found[rules.ONCE].breaches
    assert breach.what == "the gradient of blocks.1.up.weight is reduced never over group 0, expected once"
    assert breach.path[0].phase == "backward"
    assert "self.up(self.norm2(x))" in breach.path[0].source
    assert breach.path[-1].node == graph.last_write("blocks.1.up.weight").name


def test_a_dropped_bucket_is_found_for_each_parameter_in_it():
    graph = Broken(lowered(DDP(bucket_mb=0.01)))
    reduction, wait = graph.sum_of("blocks.1.up.weight")
    wait.replace_all_uses_with(reduction.args[0])  # the slices behind it keep their old example values
    (once,) = [finding for rule, finding in graph.check().items() if rule == rules.ONCE]
    assert {breach.what.split()[3] for breach in once.breaches} == set(rules.carried(reduction))
    assert len(once.breaches) > 1
    up = next(breach for breach in once.breaches if "blocks.1.up.weight" in breach.what)
    assert "self.up(self.norm2(x))" in up.path[0].source
    assert up.path[0].module == "blocks.1.up"


def test_a_gradient_reduced_twice_is_found(ddp):
    graph = Broken(ddp)
    _, wait = graph.sum_of("head.weight")
    readers = list(wait.users)
    with graph.module.graph.inserting_after(wait):
        second = add(graph.module.graph, collectives.ALL_REDUCE, wait, "sum", "0", like=wait)
    with graph.module.graph.inserting_after(second):
        again = add(graph.module.graph, collectives.WAIT, second, like=wait)
    for reader in readers:
        reader.replace_input_with(wait, again)
    (breach,) = graph.check()[rules.ONCE].breaches
    assert breach.what == "the gradient of head.weight is reduced twice over group 0, expected once"
    assert [place.node for place in breach.path if "all_reduce" in place.target] == [
        wait.args[0].name, second.name
    ]  # fmt: skip


def test_hsdp_needs_both_groups(hsdp):
    graph = Broken(hsdp)
    replicate = min(graph.groups(), key=graph.groups().__getitem__)
    reduction, wait = graph.sum_of("head.weight", group=replicate)
    assert reduction.target is collectives.ALL_REDUCE
    wait.replace_all_uses_with(reduction.args[0])
    (breach,) = graph.check()[rules.ONCE].breaches
    assert breach.what == f"the gradient of head.weight is reduced never over group {replicate}, expected once"
    assert any("reduce_scatter" in place.target for place in breach.path)


def test_a_reduction_over_the_wrong_group_is_found(hsdp):
    graph = Broken(hsdp)
    shard, replicate = sorted(graph.groups(), key=lambda name: -graph.groups()[name])
    reduction, _ = graph.sum_of("head.weight", group=replicate)
    reduction.args = (*reduction.args[:-1], shard)
    (breach,) = graph.check()[rules.ONCE].breaches
    assert f"never over group {replicate}" in breach.what
    assert f"twice over group {shard}" in breach.what


def test_an_update_from_another_parameters_gradient_is_found(ddp):
    graph = Broken(ddp)
    (_, mine), (_, other) = graph.sum_of("blocks.0.norm1.weight"), graph.sum_of("blocks.1.norm1.weight")
    mine.replace_all_uses_with(other)
    (breach,) = [b for b in graph.check()[rules.BEFORE_UPDATE].breaches if "reduction of" in b.what]
    assert breach.what == "blocks.0.norm1.weight is updated from the reduction of blocks.1.norm1.weight"


@pytest.mark.parametrize("made", ["ddp", "fsdp"])
def test_a_gather_after_the_update_is_found(made, request):
    graph = Broken(request.getfixturevalue(made))
    holder, update = graph.holder("head.weight"), graph.last_write("head.weight")
    like = graph.sum_of("head.weight")[0]
    with graph.module.graph.inserting_after(update):
        gather = add(graph.module.graph, collectives.ALL_GATHER, holder, 2, "0", like=like)
    with graph.module.graph.inserting_after(gather):
        add(graph.module.graph, collectives.WAIT, gather, like=like)
    found = graph.check()
    assert broken_rules(found) == {rules.NEXT_GATHER}
    (breach,) = found[rules.NEXT_GATHER].breaches
    assert breach.what.startswith(f"head.weight is gathered by {gather.name} after its update ")
    assert breach.path[-1].node == gather.name


def test_a_forward_that_reads_an_updated_parameter_is_found(ddp):
    graph = Broken(ddp)
    step = graph.last_write("token.weight")
    reader = next(node for node in graph.nodes if "embedding.default" in str(node.target))
    step.append(reader)
    found = graph.check()
    assert any(
        b.what.startswith(f"token.weight is read by {reader.name} after") for b in found[rules.NEXT_GATHER].breaches
    )


def test_a_result_that_nothing_waited_for_is_found(ddp):
    graph = Broken(ddp)
    reduction, wait = graph.sum_of("head.weight")
    wait.replace_all_uses_with(reduction)
    found = graph.check()
    assert broken_rules(found) == {rules.EXISTS}
    assert found[rules.EXISTS].breaches[0].what.endswith(f"reads {reduction.name} without waiting for it")


def test_a_recompute_after_its_gradient_is_found(fsdp):
    graph = Broken(fsdp)
    again, gradient = next(
        (node, user)
        for node in graph.nodes
        if AGAIN in custom(node)
        for user in node.users
        if AGAIN not in custom(user) and custom(user).get("kit_phase") == "backward"
    )
    gradient.append(again)
    found = graph.check()
    assert found[rules.RECOMPUTE].breaches[0].what == f"{gradient.name} reads {again.name} before it is made again"


def test_a_scale_of_one_rank_alone_is_found(ddp):
    graph = Broken(ddp)
    _, wait = graph.sum_of("head.weight")
    local = graph.sum_of("(loss)")[0].args[0]  # this rank's loss, before it is summed
    readers = list(wait.users)
    with graph.module.graph.inserting_after(wait):
        scaled = add(graph.module.graph, torch.ops.aten.mul.Tensor, wait, local, like=wait)
    for reader in readers:
        reader.replace_input_with(wait, scaled)
    (breach,) = graph.check()[rules.ONCE].breaches
    assert breach.what == "the gradient of head.weight is scaled by a value not reduced over group 0"
    assert scaled.name in [place.node for place in breach.path]


def test_a_parameter_that_is_not_updated_is_found(ddp):
    step, made = ddp
    names = step.inputs.names()
    found = findings_of(step.module, inputs=names, trained=["batch:0"], groups={"0": 2})
    wrong = {finding.rule: [breach.what for breach in finding.breaches] for finding in found}
    assert wrong[rules.BEFORE_UPDATE] == ["batch:0 is never updated"]
    assert made.check()


def test_sums_of_the_users_own_model_are_not_taken_for_reductions():
    gather, wait = torch.ops._c10d_functional_autograd.all_gather_into_tensor, torch.ops._c10d_functional.wait_tensor

    def with_negatives(model, pair):
        logits = model(pair[0])
        others = wait(gather(logits.mean((1, 2)), 2, "0"))  # its backward is a reduce-scatter
        return next_token_loss(lambda _: logits, pair) + others.square().mean()

    step, made = lowered(DDP(), loss=with_negatives)
    own = [node for node in step.module.graph.nodes if node.target is collectives.REDUCE_SCATTER]
    assert own
    assert made.check()


def test_a_verdict_is_said_in_words_and_survives_saving(ddp, tmp_path):
    graph = Broken(ddp)
    reduction, wait = graph.sum_of("head.weight")
    wait.replace_all_uses_with(reduction.args[0])
    broken = Plan(
        **{name: getattr(ddp[1], name) for name in Plan.__slots__} | {"findings": tuple(graph.check().values())}
    )
    check = load(save(broken, tmp_path / "plan.zip")).check()
    assert check == broken.check()
    assert not check
    assert repr(check) == (
        "Check(broken: each gradient is reduced once over each of its groups (1), reduction precedes update (1))"
    )
    assert not Check(findings=())  # a plan of old, which nothing was proved of
