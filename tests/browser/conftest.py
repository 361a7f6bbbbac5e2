"""One JupyterLab for all browser tests, which takes most of a minute to start, and one chromium a file.

Nothing sleeps for a fixed time; every wait has an end. Each page fails its test when a script of it
raised or when a request left this machine.
"""

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kit import preflight

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "out" / "screenshots"
SERVER_SECONDS, PAGE_MS, KERNEL_MS, RUN_MS, ANSWER_MS = 60, 60_000, 60_000, 180_000, 15_000

# A pop-up about news or updates would cover a corner of the page, and ask the network for it.
SETTINGS = {
    "apputils-extension/notification.jupyterlab-settings": {"fetchNews": "false", "checkForUpdates": False},
    "apputils-extension/themes.jupyterlab-settings": {"theme": "JupyterLab Light"},
    # Else a cell that is scrolled away is not in the page, and a test cannot find its widget.
    "notebook-extension/tracker.jupyterlab-settings": {"windowingMode": "none"},
}
NOTEBOOK = "window.jupyterapp.shell.currentWidget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A running JupyterLab: where it answers, its secret, the folder it serves."""

    address: str
    token: str
    folder: Path


@pytest.fixture(scope="session")
def chromium_path() -> str:
    path = preflight.find_browser()
    if path is None:
        words = "; ".join(str(missing) for missing in preflight.check_browser())
        if os.environ.get("KIT_REQUIRE_BROWSER") == "1":
            pytest.fail(f"KIT_REQUIRE_BROWSER=1, but {words}")
        pytest.skip(words)
    return path


@pytest.fixture(scope="session")
def lab(chromium_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    home = tmp_path_factory.mktemp("jupyter")
    folder = home / "served"
    folder.mkdir()
    settings = home / "config" / "lab" / "user-settings" / "@jupyterlab"
    for name, value in SETTINGS.items():
        (settings / name).parent.mkdir(parents=True, exist_ok=True)
        (settings / name).write_text(json.dumps(value))
    token, port = secrets.token_hex(16), find_free_port()
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
        "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}",
        "--KernelManager.transport=ipc", "--expose-app-in-browser",
    ]  # fmt: skip
    places = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "run"}
    own = {name: str(home / place) for name, place in places.items()}
    own["IPYTHONDIR"] = str(home / "ipython")
    log = home / "server.log"
    with log.open("w") as out:
        server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **own}, cwd=ROOT)
    running = Lab(address=f"http://127.0.0.1:{port}", token=token, folder=folder)
    try:
        wait_for_server(running, server, log)
        yield running
    finally:
        server.terminate()
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def find_free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for_server(running: Lab, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + SERVER_SECONDS
    while time.monotonic() < end:
        if server.poll() is not None:
            pytest.fail(f"JupyterLab ended with status {server.returncode}:\n{log.read_text()[-3000:]}")
        try:
            with urllib.request.urlopen(f"{running.address}/api/status?token={running.token}", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.25)
    pytest.fail(f"JupyterLab did not answer within {SERVER_SECONDS} s:\n{log.read_text()[-3000:]}")


@pytest.fixture(scope="module")
def chromium(chromium_path: str) -> Iterator[Any]:
    # Not for longer than a file: while playwright is up its event loop counts as running in this thread, and tests
    # that come after would hand their work to a loop that stands still.
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium_path, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield browser
        browser.close()


@dataclass(slots=True)
class NotebookPage:
    """A notebook open in JupyterLab, driven as a person would."""

    page: Any
    lab: Lab
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def open(self, name: str) -> None:
        """Open a notebook of the served folder and wait until its kernel is idle.

        In a workspace of its own: JupyterLab would bring back the tabs of the test before.
        """
        workspace = secrets.token_hex(4)
        self.page.goto(f"{self.lab.address}/lab/workspaces/{workspace}/tree/{name}?token={self.lab.token}")
        self.page.locator(".jp-Notebook .jp-Cell").first.wait_for(state="visible", timeout=PAGE_MS)
        idle = f"{NOTEBOOK}?.sessionContext?.session?.kernel?.status === 'idle'"
        self.page.wait_for_function(f"() => {idle}", timeout=KERNEL_MS)

    def run_all(self, *, timeout_ms: int = RUN_MS) -> None:
        """Run every cell and wait until the last one is done."""
        self._command("notebook:run-all-cells", timeout_ms)

    def run_until(self, tag: str, *, timeout_ms: int = RUN_MS) -> None:
        """Run every cell above the one with this tag, wait until they are done, and show the last of them."""
        place = self.page.evaluate(
            f"tag => {NOTEBOOK}.content.widgets.findIndex(c => (c.model.getMetadata('tags') ?? []).includes(tag))",
            tag,
        )
        assert place > 0, f"no cell is tagged {tag!r}"
        self.page.evaluate(f"place => {{ {NOTEBOOK}.content.activeCellIndex = place }}", place)
        self._command("notebook:run-all-above", timeout_ms)
        self.page.evaluate(f"place => {NOTEBOOK}.content.scrollToItem(place - 1)", place)

    def run_tagged(self, tag: str, *, timeout_ms: int = RUN_MS) -> None:
        """Run the one cell with this tag and wait until it is done."""
        self.page.evaluate(
            f"tag => {{ const n = {NOTEBOOK}.content; n.activeCellIndex = "
            "n.widgets.findIndex(c => (c.model.getMetadata('tags') ?? []).includes(tag)) }",
            tag,
        )
        self._command("notebook:run-cell", timeout_ms)

    def _command(self, name: str, timeout_ms: int) -> None:
        self.page.evaluate(
            "name => { window.kitRan = false; "
            "window.jupyterapp.commands.execute(name).finally(() => { window.kitRan = true }) }",
            name,
        )
        self.page.wait_for_function("() => window.kitRan", timeout=timeout_ms)

    def find_error_text(self) -> str:
        """What cells that failed wrote; "" when all ran."""
        found = self.page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.error']")
        return "\n".join(found.all_inner_texts())

    def photograph(self, name: str, part: Any) -> list[Path]:
        """Screenshots of a part of the page in the light and the dark theme; leaves the page light."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        taken = []
        for theme in ("Dark", "Light"):
            self.page.evaluate(
                "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })",
                f"JupyterLab {theme}",
            )
            light = json.dumps(theme == "Light")
            self.page.wait_for_function(f"() => document.body.dataset.jpThemeLight === '{light}'")
            self.page.locator("#jupyterlab-splash").wait_for(state="detached", timeout=PAGE_MS)
            part.scroll_into_view_if_needed()
            path = SCREENSHOTS / f"{name}-{theme.lower()}.png"
            part.screenshot(path=path)
            taken.append(path)
        return taken


@pytest.fixture
def notebook_page(lab: Lab, chromium: Any) -> Iterator[NotebookPage]:
    """A fresh page; afterwards its kernel is ended and what went wrong on the page fails the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    opened = NotebookPage(page=context.new_page(), lab=lab)
    own = re.compile(rf"^(data:|blob:|about:|(http|ws)://127\.0\.0\.1:{lab.address.rsplit(':', 1)[1]}/)")
    opened.page.on("pageerror", lambda error: opened.errors.append(str(error)))
    opened.page.on("request", lambda request: None if own.match(request.url) else opened.foreign.append(request.url))
    opened.page.on("websocket", lambda socket: None if own.match(socket.url) else opened.foreign.append(socket.url))
    yield opened
    opened.page.evaluate(f"() => {NOTEBOOK}?.sessionContext?.shutdown()")
    context.close()
    assert opened.foreign == [], "requests left this machine"
    assert opened.errors == [], "scripts of the page raised"
