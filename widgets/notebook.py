"""The one module that speaks to ipykernel: write and draw under the cell that runs, from any thread.

ipykernel 7 no longer follows a thread's print to the cell that started it, so every message here
names its parent, the request of the cell that the kernel runs now. Seen to work with ipykernel 7.4.
"""

import html
import itertools
import sys
from collections.abc import Sequence
from typing import Any

from widgets.progress import Row

ROW_STYLE = (
    "display:flex;align-items:center;gap:8px;color:var(--jp-ui-font-color1,currentColor);"
    "font-family:var(--jp-ui-font-family,sans-serif);font-size:13px"
)
_numbers = itertools.count()


def find_kernel() -> Any:
    """The ipykernel that this process is, or None; a process that has not imported IPython is none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None)


def hear_in_subshell(comm: Any) -> None:
    """Let the page choose the thread that hears a widget, so that buttons work while a cell blocks the kernel.

    JupyterLab 4.4 and later sends what widgets say to a subshell, but ipykernel 7.4 hands it to the thread that last
    wrote to the widget, which for one made in a cell is the blocked one. Call it after each change of the widget.
    Without that attribute (other versions) nothing changes.
    """
    vars(comm).pop("_reply_subshell_id", None)


class CellWriter:
    """Writes text to the output of the cell that runs now."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def write(self, text: str) -> None:
        """Send text as the cell's own print would (standard error is painted red on pages)."""
        self.send("stream", {"name": "stdout", "text": text})

    def send(self, kind: str, content: dict[str, Any]) -> None:
        """Send a message of the Jupyter protocol under the running cell."""
        kernel = self._kernel
        kernel.session.send(kernel.iopub_socket, kind, content, parent=self.find_cell(), ident=kind.encode())

    def find_cell(self) -> dict[str, Any]:
        """The request of the running cell, or of the last one."""
        parent: dict[str, Any] = self._kernel.get_parent("shell")
        return parent


class RowsFace:
    """Progress rows below the running cell: one display for each cell, updated in place."""

    def __init__(self, kernel: Any) -> None:
        self._writer = CellWriter(kernel)
        self._cell = ""
        self._display = ""
        self._rows: dict[str, Row] = {}

    def draw(self, rows: Sequence[Row]) -> None:
        """Show the rows under those already there; work that is over keeps its last line."""
        cell = str(self._writer.find_cell().get("header", {}).get("msg_id", ""))
        kind = "update_display_data"
        if cell != self._cell or not self._rows:
            self._cell, self._display = cell, f"kit-progress-{next(_numbers)}"
            self._rows = {}
            kind = "display_data"
        self._rows.update({f"{row.event.rank}/{row.event.key}": row for row in rows})
        content = {
            "data": {
                "text/html": format_rows(list(self._rows.values())),
                "text/plain": "\n".join(map(str, self._rows.values())),
            },
            "metadata": {},
            "transient": {"display_id": self._display},
        }
        self._writer.send(kind, content)


def format_rows(rows: Sequence[Row]) -> str:
    """HTML of progress rows: a bar that the screen reader can name, then the words."""
    return "".join(_format_row(row) for row in rows)


def _format_row(row: Row) -> str:
    event, words = row.event, html.escape(str(row))
    share = f'value="{event.done}" max="{event.total}"' if event.total else ""
    if row.is_over:
        share = 'value="1" max="1"' if event.state == "finished" else 'value="0" max="1"'
    mark = {"finished": "&#10003; ", "failed": "&#10007; "}.get(event.state, "")
    bar = f'<progress {share} aria-label="{words}" style="width:160px;flex:none"></progress>'
    return f'<div style="{ROW_STYLE}">{bar}<span>{mark}{words}</span></div>'
