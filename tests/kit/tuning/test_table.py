"""The table of a TuneReport."""

from kit.tuning.record import Measurement, Setting, TuneReport
from kit.tuning.table import table


def test_the_fastest_is_marked_and_a_failure_keeps_its_reason():
    ran = Measurement(
        setting=Setting(micro_batch=2, accumulation=2), seconds_per_step=0.05, samples_per_second=160.0,
        peak_bytes=2_621_440, peak_method="measured",
    )  # fmt: skip
    failed = Measurement(
        setting=Setting(micro_batch=4, accumulation=1), seconds_per_step=0, samples_per_second=0, peak_bytes=0,
        peak_method="", failure="out of memory <at layer 3>",
    )  # fmt: skip
    shown = table(TuneReport(global_batch=8, world_size=2, measurements=(ran, failed)))
    assert shown.rows == (
        ("2", "2", "0", "50.0", "160.0", "2.5", "fastest"),
        ("4", "1", "0", "-", "-", "-", "out of memory <at layer 3>"),
    )
    assert "&lt;at layer 3&gt;" in shown._repr_html_()
