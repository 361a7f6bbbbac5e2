"""Settings at a fixed global batch, measured on two real ranks and undone."""

import itertools

import pytest
import torch
from small_models import GPT, next_token_loss

from kit.step.compiled import compile_step
from kit.tuning.record import Setting, TuneReport
from kit.tuning.search import measure_setting, measured, report_of, settings_for


def test_settings_split_a_ranks_share_with_a_short_last_micro_batch():
    assert settings_for(12, 2, micro_batches=[4, 1, 6]) == (
        Setting(micro_batch=1, accumulation=6),
        Setting(micro_batch=4, accumulation=1, remainder=2),
        Setting(micro_batch=6, accumulation=1),
    )


def test_default_sizes_are_the_powers_of_two_of_a_share():
    assert [s.micro_batch for s in settings_for(24, 2)] == [1, 2, 4, 8]
    assert all(s.samples == 12 for s in settings_for(24, 2))


def test_a_global_batch_that_does_not_divide_names_the_nearest():
    with pytest.raises(ValueError, match="7 does not divide over 2 ranks; expected a multiple of 2, such as 6 or 8"):
        settings_for(7, 2)


def test_a_micro_batch_above_a_ranks_share_is_refused():
    with pytest.raises(ValueError, match="micro-batch 5 does not fit: each of 2 ranks gets 4 of 8 samples"):
        settings_for(8, 2, micro_batches=[5])


def batch(rows):
    ids = torch.randint(0, 61, (rows, 17), generator=torch.Generator().manual_seed(0))
    return ids[:, :-1], ids[:, 1:]


def build_and_measure(setting):
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters())
    window = [batch(setting.micro_batch)] * setting.accumulation
    window += [batch(setting.remainder)] * bool(setting.remainder)
    built = []

    def build(_):
        built.append(compile_step(model, optimizer, next_token_loss, window, strategy="fsdp"))
        return built[0], itertools.repeat(window)

    built_before = {name: p.detach().clone() for name, p in GPT.state_dict(model).items()}
    random_before = torch.random.get_rng_state()
    found = measure_setting(setting, build, steps=2)
    after = built[0].full_state_dict()
    undone = all(torch.equal(after[name], value) for name, value in built_before.items())
    steps = {int(state["step"]) for state in optimizer.state.values()}
    return found, undone, steps, torch.equal(random_before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    "setting", [Setting(micro_batch=4, accumulation=1), Setting(micro_batch=3, accumulation=1, remainder=1)]
)
def test_a_measurement_runs_on_all_ranks_and_is_undone(ranks2, setting):
    first, second = ranks2.run(build_and_measure, setting)
    assert first[0] == second[0]  # the slowest and the fullest rank, the same on each
    assert first[0].seconds_per_step > 0
    assert first[0].samples_per_second == pytest.approx(8 / first[0].seconds_per_step)
    assert first[0].peak_method == "liveness of the step's graph, predicted"
    assert first[0].peak_bytes > 3 * sum(p.nbytes for p in GPT().parameters()) / 2
    for _, undone, steps, same_random in (first, second):
        assert undone
        assert steps == {0}
        assert same_random


def test_a_bigger_micro_batch_takes_more_memory(ranks2):
    small, large = (ranks2.run(build_and_measure, Setting(micro_batch=size, accumulation=1))[0][0] for size in (1, 8))
    assert large.peak_bytes > small.peak_bytes


def test_a_setting_that_fails_is_reported_and_the_others_go_on():
    def measure(setting):
        if setting.micro_batch == 2:
            raise MemoryError("asked for 9 GB\nand more")
        return measured_as(setting)

    settings = [Setting(micro_batch=m, accumulation=4 // m) for m in (1, 2, 4)]
    report = report_of(8, 2, measured(settings, measure, failures=(MemoryError,)))
    assert [m.failure for m in report.measurements] == ["", "asked for 9 GB", ""]
    assert report.best.setting.micro_batch == 4
    assert repr(report) == (
        "TuneReport(global batch 8 on 2 ranks: best of 3 is micro-batch 4 x accumulation 1, 40 samples/s)"
    )


def test_a_report_without_a_run_has_no_best():
    report = TuneReport(global_batch=8, world_size=2, measurements=())
    assert report.best is None
    assert "none of 0 settings ran" in repr(report)


def measured_as(setting):
    from kit.tuning.record import Measurement

    return Measurement(
        setting=setting, seconds_per_step=0.1, samples_per_second=10.0 * setting.micro_batch, peak_bytes=1,
        peak_method="hand-written",
    )  # fmt: skip
