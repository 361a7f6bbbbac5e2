"""Plans with times worked out by hand, for what draws and tells them."""

import pytest

from kit.step.record import Block, Estimate, Plan, Send, Span


def send(number, ranks=2):
    return Send(
        name="all_reduce", phase="backward", group="0", bytes_in=100 * number, dtype="float32", nodes_before=1,
        nodes_hiding=1, module=f"layer{number}", source=f"model.py:{number}: x", ranks=ranks,
        parameters=(f"w{number}", "b"),
    )  # fmt: skip


def make_plan(blocks, spans):
    estimate = Estimate(
        hardware="by hand", seconds=max(end for *_, end in blocks), compute_seconds=3.0,
        communication_seconds=sum(end - start for start, end, _ in spans), exposed_seconds=sum(x for *_, x in spans),
        peak_bytes=10, spans=tuple(Span(name="all_reduce", start=s, end=e, exposed=x) for s, e, x in spans),
        compute=tuple(Block(phase=p, start=s, end=e) for p, s, e in blocks), sources="chosen for the arithmetic",
    )  # fmt: skip
    return Plan(
        strategy="DDP()", world_size=2, passes=(), micro_batch_rows=(4,), sends=tuple(map(send, range(len(spans)))),
        node_count=9, parameter_bytes=1, state_bytes=1, unused=(), estimate=estimate,
    )  # fmt: skip


@pytest.fixture
def plan_of():
    """Makes a plan of compute blocks (phase, start, end) and collectives (start, end, exposed)."""
    return make_plan
