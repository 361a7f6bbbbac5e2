"""How long the timeline view takes to draw a frame with a million events, in headless chromium, zooming and panning.

    python tests/bench/timeline_view.py [--out FILE]

The events are a real capture (DDP on two H200, part of the repository) repeated in time, so rows, names and nesting are
real. Every row is shown, host threads among them. Real mouse and keyboard input zooms from everything to microseconds
at several places, drags there and comes back. A draw call is the animation-frame callback of the view, timed from
outside of its code; the time between frames, which holds what the browser does after it, is told beside it.
"""

import itertools
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _figures import Figure, conditions, finish, say
from _timeline_page import served, write_page

import kit
from kit import preflight
from kit.timeline.record import COLUMNS, Timeline
from widgets import TimelineView

DATA = Path(__file__).parents[1] / "data"
EVENTS = 1_000_000
MOST_MS = 8.0
PLACES = (0.1, 0.35, 0.5, 0.72, 0.93)
ZOOMS = 22

# Around each callback that the page asks for; nothing of the view is changed.
TIMER = """
window.draws = []; window.frames = [];
const ask = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (act) => ask((at) => {
  const begun = performance.now();
  act(at);
  window.draws.push(performance.now() - begun);
  window.frames.push(begun);
});
"""


def repeat(timeline: Timeline, events: int) -> Timeline:
    """The same timeline again and again, one after the other, until it has so many events."""
    times = -(-events // len(timeline))
    end = int((timeline.start_ns + timeline.duration_ns).max())
    length = end - int(timeline.start_ns.min()) + 1_000_000
    columns: dict[str, Any] = {name: np.tile(getattr(timeline, name), times) for name in COLUMNS}
    copy = np.repeat(np.arange(times), len(timeline))
    columns["start_ns"] = columns["start_ns"] + copy * length
    # Launches and what they launched stay pairs of one copy.
    for name in ("correlation", "external"):
        ids = columns[name]
        columns[name] = np.where(ids >= 0, ids + copy * (int(ids.max()) + 1), ids)
    order = np.argsort(columns["rank"], kind="stable")
    return replace(timeline, **{name: column[order] for name, column in columns.items()})


def drive(page: Any) -> Iterator[str]:
    """Zoom in at several places, pan there, come back; says what comes next."""
    canvas = page.locator("canvas[tabindex]")
    box = canvas.bounding_box()
    left, width, y = box["x"] + 190, box["width"] - 200, box["y"] + 120
    canvas.focus()
    for place in PLACES:
        yield "zoom"
        x = left + place * width
        page.mouse.move(x, y)
        page.keyboard.down("Control")
        for number in range(ZOOMS):
            page.mouse.wheel(0, -120)
            if number % 5 == 4:
                page.keyboard.up("Control")
                yield "pan"
                page.mouse.down()
                for step in range(8):
                    page.mouse.move(x + 14 * (step + 1), y)
                page.mouse.up()
                for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft"):
                    page.keyboard.press(key)
                page.mouse.move(x, y)
                page.keyboard.down("Control")
        page.keyboard.up("Control")
        yield "back"
        for _ in range(ZOOMS):
            page.keyboard.press("-")


def measure(view: TimelineView) -> tuple[list[float], list[float], float]:
    """Milliseconds of each draw call, between frames while input came, and until the view stood there."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory(prefix="kit-bench-") as folder, sync_playwright() as playwright:
        say(f"{write_page(view, Path(folder)) / 1e6:.1f} MB of columns")
        browser = playwright.chromium.launch(
            executable_path=preflight.find_browser(), args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.add_init_script(TIMER)
        with served(Path(folder)) as address:
            page.goto(address)
            page.wait_for_function("() => window.ready && window.draws.length")
            ready = page.evaluate("() => performance.now()")
            page.evaluate("() => { window.draws.length = 0; window.frames.length = 0 }")
            for _ in drive(page):
                pass
            draws, frames = page.evaluate("() => [window.draws, window.frames]")
        browser.close()
    gaps = [after - before for before, after in itertools.pairwise(frames) if after - before < 200]
    return draws, gaps, ready


def percentile(values: list[float], share: int) -> float:
    """The value below which `share` per cent of the values lie."""
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]


def main() -> None:
    """Measure it."""
    if preflight.find_browser() is None:
        raise SystemExit("no chromium here; apt-get install chromium")
    under = conditions(["playwright", "anywidget", "numpy"])
    source = kit.read([DATA / f"h200_ddp_eager_rank{rank}.json.gz" for rank in (0, 1)])
    timeline = repeat(source, EVENTS)
    say(repr(timeline))
    view = TimelineView(timeline, hosts=True, height=700)
    boxes = sum(track["count"] for track in view.tracks)
    draws, gaps, ready = measure(view)
    say(f"{len(draws)} draw calls, {boxes} boxes in {len(view.tracks)} rows")
    worst = percentile(draws, 95)
    finish(
        "timeline_view",
        {**under, "events": len(timeline), "boxes": boxes, "rows": len(view.tracks), "draw calls": len(draws)},
        {
            "draw call, 95th percentile": Figure(
                value=worst, unit="ms", bar=f"at most {MOST_MS:g}", holds=worst <= MOST_MS
            ),
            "draw call, median": Figure(value=statistics.median(draws), unit="ms"),
            "draw call, longest": Figure(value=max(draws), unit="ms"),
            "between frames under input, median": Figure(value=statistics.median(gaps), unit="ms"),
            "until the view stands there": Figure(value=ready, unit="ms"),
        },
    )


if __name__ == "__main__":
    main()
