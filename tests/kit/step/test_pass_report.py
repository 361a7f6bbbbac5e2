"""The table of a step's passes says what the graphs hold."""

import torch
from small_models import Perceptron, next_token_loss

from kit.display import table
from kit.step.compiled import compile_step
from kit.step.strategy import FSDP


def batch():
    ids = torch.randint(0, 61, (4, 17), generator=torch.Generator().manual_seed(0))
    return ids[:, :-1], ids[:, 1:]


def reports():
    torch.manual_seed(0)
    model = Perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = compile_step(model, optimizer, next_token_loss, batch(), strategy=FSDP(bucket_mb=0.01))
    before = model.head.weight.to_local().clone()
    predicted, measured = step.pass_report(), step.pass_report(batch())
    return predicted, measured, step.plan, step.predicted_peak_bytes, torch.equal(before, model.head.weight.to_local())


def test_each_pass_has_its_figures_and_the_last_row_is_the_plan(ranks2):
    (predicted, measured, plan, peak, untouched), other = ranks2.run(reports)
    assert [row.name for row in predicted.rows] == ["traced", *plan.passes]
    last = predicted.rows[-1]
    assert (last.nodes, last.collectives, last.bytes_sent) == (plan.node_count, len(plan.sends), plan.bytes_sent)
    assert last.peak_bytes == peak
    assert last.exposed_seconds < predicted.rows[0].exposed_seconds  # 45 us for each of many small collectives
    assert all(row.seconds is None for row in predicted.rows)
    assert untouched
    assert [row.seconds for row in measured.rows] == [row.seconds for row in other[1].rows]  # of the slowest rank
    assert all(row.seconds > 0 for row in measured.rows)


def test_the_table_says_what_is_predicted_and_what_is_measured(ranks2):
    predicted, measured, *_ = ranks2.run(reports)[0]
    text = str(table(measured))
    assert text.splitlines()[0].split("  ")[0] == "pass"
    assert "peak, predicted" in text
    assert "step, measured" in text
    assert "exposed communication is estimated on h200" in text
    assert "measured with executor 'eager', slowest rank" in text
    assert "measured with" not in str(table(predicted))
