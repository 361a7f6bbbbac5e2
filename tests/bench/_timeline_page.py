"""Serve one TimelineView without JupyterLab: its own module, style and columns on a page, from the loopback address.

What is measured is the widget's code as it is shipped; only the model behind it is replaced by its state.
"""

import functools
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from widgets import TimelineView

PAGE = """<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="view.css">
<body data-jp-theme-light="true" style="margin:8px"><div id="view"></div><script type="module">
import view from "./view.js";
const state = await (await fetch("state.json")).json();
for (const name of BINARY) {
  state[name] = new DataView(await (await fetch(name + ".bin")).arrayBuffer());
}
const model = { get: (name) => state[name], set: (name, value) => { state[name] = value; },
                save_changes() {}, on() {}, off() {} };
view.render({ model, el: document.getElementById("view") });
window.ready = true;
</script>"""
BINARY = ("start", "duration", "kind", "name", "row", "joined", "memory_at", "memory_bytes")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def write_page(view: TimelineView, folder: Path) -> int:
    """Write the page of a view; gives the bytes of its columns."""
    state = {
        name: view.trait_values()[name]
        for name in ("tracks", "names", "looks", "bounds", "description", "height", "hosts", "selected", "details",
                     "window", "table")
    }  # fmt: skip
    (folder / "index.html").write_text(PAGE.replace("BINARY", json.dumps(BINARY)))
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "view.js").write_text(str(view._esm))
    (folder / "view.css").write_text(str(view._css))
    for name in BINARY:
        (folder / f"{name}.bin").write_bytes(getattr(view, name))
    return sum(len(getattr(view, name)) for name in BINARY)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder while the block runs."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/index.html"
        finally:
            server.shutdown()
            thread.join()
