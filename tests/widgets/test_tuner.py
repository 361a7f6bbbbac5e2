"""The tuner without a browser: settings, measuring, applying, errors, what papermill keeps of it."""

import re
import threading
import time
from collections.abc import Callable

import pytest
import traitlets

from kit.tuning.record import Measurement, Setting, TuneReport
from widgets.tuner import Tuner

SETTINGS = [Setting(micro_batch=m, accumulation=16 // m) for m in (4, 2, 8)]


def measured(setting: Setting, *, failure: str = "") -> Measurement:
    rate = 0.0 if failure else 100.0 * setting.micro_batch
    return Measurement(
        setting=setting,
        seconds_per_step=0.0 if failure else 32 / rate,
        samples_per_second=rate,
        peak_bytes=0 if failure else setting.micro_batch << 20,
        peak_method="measured",
        failure=failure,
    )


def make_tuner(
    measure: Callable[[Setting], Measurement] = measured,
    apply: Callable[[Setting], str] = lambda s: f"applied {s.micro_batch}",
) -> Tuner:
    return Tuner(SETTINGS, measure, apply, global_batch=32, world_size=2)


def press(tuner: Tuner, name: str) -> None:
    """Press a button as the front end does."""
    next(b for b in [*tuner._starters, tuner._stop] if b.description == name).click()


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < end, "waited 10 s in vain"
        time.sleep(0.01)


def test_the_slider_offers_settings_by_micro_batch() -> None:
    tuner = make_tuner()
    assert tuner._slider.choices == ["2", "4", "8"]
    assert tuner.micro_batch == 2


def test_the_slider_moves_the_micro_batch_and_back() -> None:
    tuner = make_tuner()
    tuner._slider.index = 2
    assert tuner.micro_batch == 8
    tuner.micro_batch = 4
    assert tuner._slider.index == 1
    assert tuner.selected == SETTINGS[0]


def test_the_plan_says_accumulation_remainder_and_samples() -> None:
    setting = Setting(micro_batch=5, accumulation=3, remainder=1)
    tuner = Tuner([setting], measured, lambda s: "", global_batch=32, world_size=2)
    assert tuner._plan.value == (
        "micro-batch 5 x accumulation 3 and one of 1: 16 samples on each of 2 ranks, 32 in all"
    )


def test_a_micro_batch_that_is_not_offered_is_refused() -> None:
    tuner = make_tuner()
    with pytest.raises(traitlets.TraitError, match=re.escape("expected one of [2, 4, 8]")):
        tuner.micro_batch = 3
    assert tuner.micro_batch == 2


def test_measuring_all_fills_the_report_in_order() -> None:
    report = make_tuner().measure_all()
    assert isinstance(report, TuneReport)
    assert [m.setting.micro_batch for m in report.measurements] == [2, 4, 8]
    assert report.best == measured(Setting(micro_batch=8, accumulation=2))


def test_measuring_all_leaves_out_what_is_measured() -> None:
    seen: list[int] = []

    def measure(setting: Setting) -> Measurement:
        seen.append(setting.micro_batch)
        return measured(setting)

    tuner = make_tuner(measure)
    tuner.micro_batch = 4
    tuner.measure_selected()
    tuner.measure_all()
    assert seen == [4, 2, 8]


def test_a_setting_that_failed_is_in_the_table_and_not_in_the_picture() -> None:
    tuner = make_tuner(lambda s: measured(s, failure="out of memory <rank 1>" if s.micro_batch == 8 else ""))
    tuner.measure_all()
    assert "out of memory &lt;rank 1&gt;" in tuner._table.value
    assert tuner._picture.value.count('r="5"') == 2


def test_apply_returns_and_shows_the_sentence() -> None:
    tuner = make_tuner()
    tuner.micro_batch = 8
    assert tuner.apply_selected() == "applied 8"
    assert tuner._status.value == '<div role="status">applied 8</div>'


def test_an_error_is_shown_escaped_beside_the_buttons_and_raised_to_a_caller() -> None:
    def apply(_: Setting) -> str:
        raise RuntimeError("rank 1: <b>no</b>")

    tuner = make_tuner(apply=apply)
    with pytest.raises(RuntimeError, match="rank 1"):
        tuner.apply_selected()
    assert "RuntimeError: rank 1: &lt;b&gt;no&lt;/b&gt;</pre>" in tuner._status.value
    press(tuner, "Apply")
    wait_until(lambda: not tuner._starters[0].disabled)
    assert "RuntimeError" in tuner._status.value


def test_a_long_error_is_cut_and_its_rest_counted() -> None:
    def measure(_: Setting) -> Measurement:
        raise RuntimeError("\n".join(f"line {n}" for n in range(40)))

    tuner = make_tuner(measure)
    with pytest.raises(RuntimeError):
        tuner.measure_selected()
    assert "line 11\n... and 28 more lines" in tuner._status.value


def test_buttons_work_in_a_thread_and_are_disabled_meanwhile() -> None:
    release = threading.Event()
    threads: list[str] = []

    def measure(setting: Setting) -> Measurement:
        threads.append(threading.current_thread().name)
        release.wait(10)
        return measured(setting)

    tuner = make_tuner(measure)
    press(tuner, "Measure")
    wait_until(lambda: bool(threads))
    assert [b.disabled for b in tuner._starters] == [True, True, True]
    assert not tuner._stop.disabled
    release.set()
    wait_until(lambda: not tuner._starters[0].disabled)
    assert threads == ["kit-tuner"]
    assert len(tuner.report.measurements) == 1


def test_stop_ends_measuring_after_the_present_setting() -> None:
    begun, release = threading.Event(), threading.Event()

    def measure(setting: Setting) -> Measurement:
        begun.set()
        release.wait(10)
        return measured(setting)

    tuner = make_tuner(measure)
    press(tuner, "Measure all")
    assert begun.wait(10)
    press(tuner, "Stop")
    release.set()
    wait_until(lambda: not tuner._starters[0].disabled)
    assert len(tuner.report.measurements) == 1
    assert "Stopped after 1 of 3 settings." in tuner._status.value


def test_the_calls_never_run_at_the_same_time() -> None:
    inside: list[int] = []
    most: list[int] = []

    def measure(setting: Setting) -> Measurement:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.02)
        inside.pop()
        return measured(setting)

    tuner = make_tuner(measure)
    press(tuner, "Measure all")
    tuner.measure_all()
    wait_until(lambda: not tuner._starters[0].disabled)
    assert set(most) == {1}


def test_papermill_keeps_picture_and_table_beside_the_live_view() -> None:
    tuner = make_tuner()
    tuner.measure_all()
    bundle = tuner._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "<svg" in bundle["text/html"]
    assert "800" in bundle["text/html"]
    assert bundle["text/plain"] == (
        "Tuner(micro-batch 2 of 3 settings, TuneReport(global batch 32 on 2 ranks: best of 3 is "
        "micro-batch 8 x accumulation 2, 800 samples/s))"
    )


def test_settings_of_another_global_batch_are_refused() -> None:
    settings = [Setting(micro_batch=2, accumulation=4)]
    with pytest.raises(ValueError, match=r"8 samples on each of 2 ranks, 16 in all; expected the global batch of 32"):
        Tuner(settings, measured, str, global_batch=32, world_size=2)


def test_two_settings_with_one_micro_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="two settings have micro_batch 4"):
        Tuner([SETTINGS[0], SETTINGS[0]], measured, str, global_batch=32, world_size=2)


def test_no_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="Tuner got no settings"):
        Tuner([], measured, str, global_batch=32, world_size=2)
