"""What a TuneReport looks like: memory against throughput as SVG, and every setting as a table.

Plain text from plain data, so the live tuner and the page that papermill leaves show the same. A
point is told apart by its micro-batch number, the selected one by a ring, the best one by a star.
"""

import html
import math
import textwrap
from collections.abc import Sequence

from kit import colours
from kit.tuning.record import Measurement, Setting, TuneReport

WIDTH, HEIGHT = 460, 330
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 16, 94
LINE_CHARACTERS = 64  # of 12 px text, what surely fits the width
MIB = 1 << 20
INK = "var(--jp-ui-font-color1, #808080)"
FAINT = "var(--jp-border-color2, #80808060)"
TEXT = "font-family:var(--jp-ui-font-family,sans-serif);font-size:12px"


def describe(setting: Setting, *, world_size: int) -> str:
    """A setting in words, with the samples it makes in one optimizer step."""
    rest = f" and one of {setting.remainder}" if setting.remainder else ""
    return (
        f"micro-batch {setting.micro_batch} x accumulation {setting.accumulation}{rest}: "
        f"{setting.samples} samples on each of {world_size} ranks, {setting.samples * world_size} in all"
    )


def draw(report: TuneReport, *, selected: Setting) -> str:
    """SVG of peak memory (across) against samples a second (up), one point a setting that ran."""
    ran = sorted((m for m in report.measurements if not m.failure), key=lambda m: m.setting.micro_batch)
    best = report.best
    title = html.escape(f"Memory against throughput, {len(ran)} settings measured")
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{title}" style="width:100%;max-width:{WIDTH}px;height:auto;{TEXT}">'
        f"<title>{title}</title>"
    )
    if not ran:
        words = "Nothing measured yet"
        return f"{head}{_text(WIDTH / 2, HEIGHT / 2, words, anchor='middle')}</svg>"
    across = _Axis([m.peak_bytes / MIB for m in ran], start=LEFT, end=WIDTH - RIGHT, from_zero=False)
    up = _Axis([m.samples_per_second for m in ran], start=HEIGHT - BOTTOM, end=TOP, from_zero=True)
    places = [(across.place(m.peak_bytes / MIB), up.place(m.samples_per_second)) for m in ran]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [
        head,
        _draw_axes(across, up, methods=sorted({m.peak_method for m in ran})),
        f'<polyline points="{line}" fill="none" stroke="{FAINT}" stroke-width="1.5"/>',
        *(
            _draw_point(m, x, y, is_best=m is best, is_selected=m.setting == selected)
            for m, (x, y) in zip(ran, places, strict=True)
        ),
        _text(WIDTH / 2, HEIGHT - 6, "number: micro-batch · ★ most samples/s · ring: selected", anchor="middle"),
        "</svg>",
    ]
    return "".join(parts)


class _Axis:
    """A linear scale with round ticks."""

    def __init__(self, values: Sequence[float], *, start: float, end: float, from_zero: bool) -> None:
        low, high = min(values), max(values)
        room = (high if from_zero else high - low) * 0.15 or abs(high) * 0.1 or 1.0
        self.low = 0.0 if from_zero else max(low - room, 0.0)
        self.high = high + room
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        """Where a value lies on the picture."""
        return self._start + (value - self.low) / (self.high - self.low) * (self._end - self._start)

    def find_ticks(self) -> list[float]:
        """Three to six round values inside the axis."""
        raw = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
        first = math.ceil(self.low / step)
        return [n * step for n in range(first, math.floor(self.high / step) + 1)]


def _draw_axes(across: _Axis, up: _Axis, *, methods: Sequence[str]) -> str:
    floor = HEIGHT - BOTTOM
    parts = [f'<path d="M{LEFT} {TOP}V{floor}H{WIDTH - RIGHT}" fill="none" stroke="{INK}"/>']
    for value in up.find_ticks():
        y = up.place(value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{FAINT}"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{value:g}", anchor="end"))
    for value in across.find_ticks():
        x = across.place(value)
        parts.append(f'<path d="M{x:.1f} {floor}v5" stroke="{INK}"/>')
        parts.append(_text(x, floor + 18, f"{value:g}", anchor="middle"))
    middle = (TOP + floor) / 2
    parts.append(_text(WIDTH / 2, floor + 36, "peak memory of the fullest rank, MiB", anchor="middle"))
    method = textwrap.wrap(f"({', '.join(methods)})", LINE_CHARACTERS, max_lines=2, placeholder=" ...)")
    for number, line in enumerate(method):
        parts.append(_text(WIDTH / 2, floor + 52 + 15 * number, line, anchor="middle"))
    parts.append(f'<g transform="rotate(-90 16 {middle})">{_text(16, middle, "samples/s", anchor="middle")}</g>')
    return "".join(parts)


def _draw_point(m: Measurement, x: float, y: float, *, is_best: bool, is_selected: bool) -> str:
    ring = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="10" fill="none" stroke="{INK}" stroke-width="2"/>'
    label = f"{m.setting.micro_batch}{' ★' if is_best else ''}"
    tip = html.escape(f"micro-batch {m.setting.micro_batch}: {m.samples_per_second:.4g} samples/s, {_mib(m)} MiB")
    return (
        f"<g><title>{tip}</title>{ring if is_selected else ''}"
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colours.COMPUTE}" stroke="{INK}"/>'
        f"{_text(x, y - 14, label, anchor='middle', weight=700)}</g>"
    )


def _text(x: float, y: float, words: str, *, anchor: str = "start", weight: int = 400) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="{INK}">'
        f"{html.escape(words)}</text>"
    )


def _mib(measurement: Measurement) -> str:
    return f"{measurement.peak_bytes / MIB:.1f}"


HEADINGS = ("", "micro-batch", "accumulation", "remainder", "s/step", "samples/s", "peak MiB", "")
CELL = "padding:2px 8px;text-align:right;white-space:nowrap"


def format_table(report: TuneReport, *, settings: Sequence[Setting], selected: Setting) -> str:
    """HTML table of every setting, measured or not; the selected one is marked ▶, the best ★."""
    by_setting = {m.setting: m for m in report.measurements}
    caption = f"Global batch {report.global_batch} on {report.world_size} ranks"
    head = "".join(f'<th scope="col" style="{CELL}">{name}</th>' for name in HEADINGS)
    rows = "".join(
        _format_row(s, by_setting.get(s), mark="▶" if s == selected else "", best=report.best) for s in settings
    )
    style = f"border-collapse:collapse;line-height:1.4;color:{INK};{TEXT}"
    return (
        f'<table class="kit-tune" style="{style}">'
        f'<caption style="text-align:left;padding:4px 8px">{caption}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _format_row(setting: Setting, found: Measurement | None, *, mark: str, best: Measurement | None) -> str:
    numbers = ["", "", ""]
    note = "not measured"
    if found is not None and found.failure:
        note = found.failure
    elif found is not None:
        numbers = [f"{found.seconds_per_step:.3g}", f"{found.samples_per_second:.4g}", _mib(found)]
        note = "★ best" if found is best else ""
    cells = [mark, str(setting.micro_batch), str(setting.accumulation), str(setting.remainder), *numbers]
    tds = "".join(f'<td style="{CELL}">{cell}</td>' for cell in cells)
    weight = "700" if mark else "400"
    left = "padding:2px 8px;text-align:left"
    return f'<tr style="font-weight:{weight}">{tds}<td style="{left}">{html.escape(note)}</td></tr>'
