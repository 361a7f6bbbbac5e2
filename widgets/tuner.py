"""Choose micro-batch and accumulation by hand, at a fixed global batch, measured live on the ranks.

The tuner knows settings and two calls, one that measures a setting and one that applies it; what
stands behind them (ranks, a compiled step) is the caller's. Buttons run the calls in a thread, one at
a time, so the kernel answers meanwhile; what they find is shown by the kernel's own thread.
"""

import asyncio
import html
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ipywidgets
import traitlets

from kit.tuning.record import Measurement, Setting, TuneReport
from widgets import tuner_picture
from widgets.slider import ChoiceSlider

Measure = Callable[[Setting], Measurement]
Apply = Callable[[Setting], str]

MAX_ERROR_LINES = 12


class Tuner(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """A slider over micro-batches, buttons to measure and apply, a picture and a table of what was found.

    `settings`: what the slider offers; all must make `global_batch` samples on `world_size` ranks in
    one optimizer step. `measure(setting)` runs it on all ranks; a setting that cannot run gives a
    `Measurement` with `failure`. `apply(setting)` makes it the one in use and returns a sentence.
    Both are called from a thread when a button is pressed and from the caller's when a method is.
    Raises `ValueError` when there is no setting, two have one micro-batch, or one makes another batch.
    """

    micro_batch = traitlets.Int().tag(sync=True)

    def __init__(
        self,
        settings: Sequence[Setting],
        measure: Measure,
        apply: Apply,
        *,
        global_batch: int,
        world_size: int,
    ) -> None:
        self._settings = _order_settings(settings, global_batch=global_batch, world_size=world_size)
        self._measure, self._apply = measure, apply
        self._global_batch, self._world_size = global_batch, world_size
        self._measured: dict[Setting, Measurement] = {}
        self._one_at_a_time = threading.Lock()
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._make_parts()
        super().__init__(
            children=[
                self._heading,
                self._slider,
                self._plan,
                ipywidgets.HBox([*self._starters, self._stop]),
                self._status,
                ipywidgets.HBox([self._picture, self._table], layout={"flex_flow": "row wrap"}),
            ],
            micro_batch=self._settings[0].micro_batch,
        )
        self._slider.observe(self._follow_slider, names="index")
        self.observe(self._follow_micro_batch, names="micro_batch")
        self._show()

    def __repr__(self) -> str:
        return f"Tuner(micro-batch {self.micro_batch} of {len(self._settings)} settings, {self.report!r})"

    @property
    def report(self) -> TuneReport:
        """What was measured so far, by micro-batch."""
        found = tuple(self._measured[s] for s in self._settings if s in self._measured)
        return TuneReport(global_batch=self._global_batch, world_size=self._world_size, measurements=found)

    @property
    def selected(self) -> Setting:
        """The setting that the slider stands on."""
        return next(s for s in self._settings if s.micro_batch == self.micro_batch)

    def measure_selected(self) -> Measurement:
        """Measure the selected setting and wait for it."""
        self._measure_each([self.selected])
        return self._measured[self.selected]

    def measure_all(self) -> TuneReport:
        """Measure every setting that is not measured yet and wait for them; `stop` ends it early."""
        self._measure_each([s for s in self._settings if s not in self._measured])
        return self.report

    def apply_selected(self) -> str:
        """Apply the selected setting, wait, and return the sentence that says what came of it."""
        setting = self.selected
        with self._errors_shown(), self._one_at_a_time:
            self._post(self._say, f"Applying micro-batch {setting.micro_batch} ...")
            sentence = self._apply(setting)
        self._post(self._say, sentence)
        return sentence

    def stop(self) -> None:
        """End measuring after the setting that is measured now."""
        self._stopping.set()

    def _measure_each(self, settings: Sequence[Setting]) -> None:
        self._stopping.clear()
        for number, setting in enumerate(settings, 1):
            with self._errors_shown(), self._one_at_a_time:
                if self._stopping.is_set():
                    self._post(self._say, f"Stopped after {number - 1} of {len(settings)} settings.")
                    return
                words = f"Measuring micro-batch {setting.micro_batch} ({number} of {len(settings)}) ..."
                self._post(self._say, words)
                self._measured[setting] = self._measure(setting)
            self._post(self._show)
        self._post(self._say, _summarise(self.report, last=settings[-1:]))

    def _make_parts(self) -> None:
        ranks = f"{self._world_size} rank{'s' if self._world_size > 1 else ''}"
        self._heading = ipywidgets.HTML(f"<b>Micro-batch at a global batch of {self._global_batch} on {ranks}</b>")
        self._slider = ChoiceSlider(
            description="Micro-batch",
            choices=[str(s.micro_batch) for s in self._settings],
            spoken=[tuner_picture.describe(s, world_size=self._world_size) for s in self._settings],
        )
        self._plan = ipywidgets.HTML()
        self._starters = [
            self._make_button("Measure", "Run the selected setting on all ranks", self.measure_selected),
            self._make_button("Measure all", "Run every setting not measured yet", self.measure_all),
            self._make_button("Apply", "Go on with the selected setting", self.apply_selected),
        ]
        self._starters[-1].button_style = "primary"
        self._stop = ipywidgets.Button(description="Stop", tooltip="End after the present setting", disabled=True)
        self._stop.on_click(self._press_stop)
        self._status = ipywidgets.HTML()
        self._picture = ipywidgets.HTML(layout={"flex": "1 1 320px", "max_width": f"{tuner_picture.WIDTH}px"})
        self._table = ipywidgets.HTML(layout={"flex": "0 1 auto", "overflow": "auto"})

    def _make_button(self, name: str, tooltip: str, job: Callable[[], Any]) -> Any:
        button = ipywidgets.Button(description=name, tooltip=tooltip)
        button.on_click(lambda _: self._start(job))
        return button

    def _start(self, job: Callable[[], Any]) -> None:
        """Run a job in a thread; called by a button, so in the kernel's thread."""
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None  # no kernel, as in a test: shown from the thread
        self._set_busy(True)
        threading.Thread(target=self._run, args=(job,), name="kit-tuner", daemon=True).start()

    def _run(self, job: Callable[[], Any]) -> None:
        try:
            job()
        except BaseException:  # shown beside the buttons already, and no one waits for this thread
            pass
        finally:
            self._post(self._set_busy, False)

    @contextmanager
    def _errors_shown(self) -> Iterator[None]:
        """Show what the caller's calls raise in the status area, and raise it on."""
        try:
            yield
        except BaseException as error:
            self._post(self._show_error, error)
            raise

    def _post(self, show: Callable[..., None], *arguments: Any) -> None:
        """Change what is seen: in the kernel's thread when a button's thread asks, else at once."""
        if self._loop is not None and threading.current_thread() is not threading.main_thread():
            self._loop.call_soon_threadsafe(show, *arguments)
        else:
            show(*arguments)

    def _press_stop(self, _: Any) -> None:
        self.stop()
        self._stop.disabled = True
        self._say("Stopping after the present setting ...")

    def _set_busy(self, busy: bool) -> None:
        for button in self._starters:
            button.disabled = busy
        self._stop.disabled = not busy

    def _follow_slider(self, change: Any) -> None:
        self.micro_batch = self._settings[change["new"]].micro_batch

    def _follow_micro_batch(self, _: Any) -> None:
        self._slider.index = self._settings.index(self.selected)
        self._show()

    @traitlets.validate("micro_batch")
    def _keep_to_settings(self, proposal: dict[str, Any]) -> int:
        offered = [s.micro_batch for s in self._settings]
        if proposal["value"] not in offered:
            raise traitlets.TraitError(
                f"micro_batch {proposal['value']} is not among the settings; expected one of {offered}"
            )
        return int(proposal["value"])

    def _show(self) -> None:
        plan = tuner_picture.describe(self.selected, world_size=self._world_size)
        self._plan.value = html.escape(plan)
        self._picture.value = tuner_picture.draw(self.report, selected=self.selected)
        self._table.value = self._draw_table()

    def _draw_table(self) -> str:
        return tuner_picture.format_table(self.report, settings=self._settings, selected=self.selected)

    def _say(self, words: str) -> None:
        self._status.value = f'<div role="status">{html.escape(words)}</div>'

    def _show_error(self, error: BaseException) -> None:
        lines = f"{type(error).__name__}: {error}".splitlines()
        if len(lines) > MAX_ERROR_LINES:
            lines = [*lines[:MAX_ERROR_LINES], f"... and {len(lines) - MAX_ERROR_LINES} more lines"]
        style = "color:var(--jp-error-color1,#d55e00);white-space:pre-wrap;margin:4px 0"
        self._status.value = f'<pre role="alert" style="{style}">{html.escape(chr(10).join(lines))}</pre>'

    def _repr_mimebundle_(self, **arguments: Any) -> dict[str, Any]:
        """The live view, and for pages without a kernel the same picture and table as they are now."""
        bundle = dict(super()._repr_mimebundle_(**arguments) or {})
        bundle["text/plain"] = repr(self)
        picture = tuner_picture.draw(self.report, selected=self.selected)
        bundle["text/html"] = f"<div>{picture}</div>{self._draw_table()}"
        return bundle


def _order_settings(settings: Sequence[Setting], *, global_batch: int, world_size: int) -> list[Setting]:
    ordered = sorted(settings, key=lambda s: s.micro_batch)
    if not ordered:
        raise ValueError("Tuner got no settings; expected at least one Setting")
    for before, after in itertools.pairwise(ordered):
        if before.micro_batch == after.micro_batch:
            raise ValueError(f"two settings have micro_batch {after.micro_batch}; expected one for each micro-batch")
    for setting in ordered:
        if setting.samples * world_size != global_batch:
            raise ValueError(
                f"{tuner_picture.describe(setting, world_size=world_size)}; expected the global batch of "
                f"{global_batch}, so that every setting trains to the same result"
            )
    return ordered


def _summarise(report: TuneReport, *, last: Sequence[Setting]) -> str:
    """What to read in the status line after measuring."""
    if not last:
        return "Every setting is measured already."
    found = next(m for m in report.measurements if m.setting == last[0])
    if found.failure:
        return f"Micro-batch {found.setting.micro_batch} did not run: {found.failure}"
    rate = f"{found.samples_per_second:.4g} samples/s"
    return f"Measured micro-batch {found.setting.micro_batch}: {rate}, {found.peak_bytes / (1 << 20):.1f} MiB."
