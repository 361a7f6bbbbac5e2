"""A TuneReport as a table: one row a setting, the fastest marked."""

from kit.tables import Table
from kit.tuning.record import Measurement, TuneReport


def table(report: TuneReport) -> Table:
    """Micro-batch, accumulation, speed and memory of every setting."""
    head = ("micro-batch", "accumulation", "remainder", "ms a step", "samples/s", "peak MiB", "")
    rows = tuple(_row(m, best=m is report.best) for m in report.measurements)
    methods = sorted({m.peak_method for m in report.measurements if m.peak_method})
    notes = (
        f"global batch {report.global_batch} on {report.world_size} ranks; every row trains the same",
        *(f"peak: {method}" for method in methods),
    )
    return Table(head=head, rows=rows, notes=notes, left=(6,))


def _row(measurement: Measurement, *, best: bool) -> tuple[str, ...]:
    setting = measurement.setting
    sizes = (str(setting.micro_batch), str(setting.accumulation), str(setting.remainder))
    if measurement.failure:
        return (*sizes, "-", "-", "-", measurement.failure[:80])
    return (
        *sizes,
        f"{measurement.seconds_per_step * 1e3:.1f}",
        f"{measurement.samples_per_second:.1f}",
        f"{measurement.peak_bytes / 2**20:.1f}",
        "fastest" if best else "",
    )
