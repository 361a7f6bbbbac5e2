"""The ranks of a group, live: what each is doing, where, since when, and the memory it holds.

A thread of the panel asks the ranks, so it goes on while a cell waits for them. Its buttons work then too where
widgets have a subshell of their own (JupyterLab 4.4 and later with ipykernel 7; seen with 4.6.6 and 7.4.0); elsewhere a
kernel hears a button only when the cell is over, so in a blocking cell use the notebook's stop button.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from kit.ranks.errors import RanksError
from kit.ranks.group import Ranks
from kit.ranks.stacks import RankStack, Stacks, State
from kit.ranks.status import format_bytes, status
from widgets import notebook
from widgets.module import styles_of

BUSY_SECONDS = 0.25
IDLE_SECONDS = 1.0
_LOOK_SECONDS = 0.5
_CLOSE_SECONDS = 2.0


class RankPanel(anywidget.AnyWidget):
    """One row for each rank of a group, with buttons to interrupt the call, replace a dead rank and show all lines.

    Four updates a second while a call is under way, one while nothing is. It ends with the group or with `close()`.
    """

    _esm = Path(__file__).parent / "ranks.js"
    _css = styles_of("ranks.css")

    title = traitlets.Unicode().tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    said = traitlets.Unicode().tag(sync=True)
    call = traitlets.Int(0).tag(sync=True)  # number of the call under way, 0 for none
    rows = traitlets.List(traitlets.Dict()).tag(sync=True)

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self._ranks = ranks
        self._publishing = threading.Lock()
        self._ended = threading.Event()
        self._actions: dict[str, Callable[[dict[str, Any]], str]] = {
            "interrupt": self._interrupt,
            "replace": self._replace,
        }
        self.on_msg(self._press)
        self.refresh()
        self._watcher = threading.Thread(target=self._watch, name="kit-rank-panel", daemon=True)
        self._watcher.start()

    def __repr__(self) -> str:
        return f"RankPanel({self._ranks!r})"

    def refresh(self) -> None:
        """Show the ranks as they are now."""
        if self._ranks.closed:
            self._show(None)
            return
        try:
            self._show(self._ranks.stacks(seconds=_LOOK_SECONDS))
        except RanksError:  # closed meanwhile
            self._show(None)

    def close(self) -> None:
        """End the panel; the ranks go on."""
        self._ended.set()
        if threading.current_thread() is not self._watcher:
            self._watcher.join(_CLOSE_SECONDS)
        super().close()

    def _watch(self) -> None:
        while not self._ended.wait(BUSY_SECONDS if self.call else IDLE_SECONDS) and not self._ranks.closed:
            self.refresh()
        if not self._ended.is_set():
            self.refresh()

    def _show(self, stacks: Stacks | None) -> None:
        with self._publishing, self.hold_sync():
            self.title = f"{self._ranks.world_size} ranks, {self._ranks.backend}, {self._ranks.device}"
            if stacks is None:
                self.rows, self.call, self.sentence = [], 0, "The group is closed."
                return  # nothing is left to press
            self.title += f", epoch {self._ranks.epoch}" + (f": {stacks.call} runs" if stacks.call else "")
            sentence = stacks.explain()
            self.sentence = f"{sentence[:1].upper()}{sentence[1:]}."
            self.rows = [_row(row) for row in stacks.rows]
            self.call = stacks.number
        self._hear()

    def _press(self, _: Any, content: dict[str, Any], __: Any) -> None:
        """A button was pressed: act in a thread, because a replacement waits for ranks."""
        action = self._actions.get(str(content.get("press")))
        if action is not None:
            threading.Thread(target=self._act, args=(action, content), name="kit-rank-panel-act", daemon=True).start()

    def _act(self, action: Callable[[dict[str, Any]], str], content: dict[str, Any]) -> None:
        try:
            said = action(content)
        except (RanksError, KeyboardInterrupt) as error:
            said = f"{type(error).__name__}: {error}"
        with self._publishing:
            self.said = said
        self.refresh()

    def _hear(self) -> None:
        if self.comm is not None:
            notebook.hear_in_subshell(self.comm)

    def _interrupt(self, content: dict[str, Any]) -> str:
        # A click that the kernel hears late must not stop another call than the one it was meant for.
        if self._ranks.stacks(seconds=0.0).number != content.get("call"):
            return "That call is over already."
        self._ranks.interrupt()
        return "Interrupted."

    def _replace(self, content: dict[str, Any]) -> str:
        return repr(self._ranks.replace(int(content["rank"])))

    def _repr_mimebundle_(self, **arguments: Any) -> Any:
        """The live panel, and for pages without a kernel the ranks as a table, as they are now."""
        live = super()._repr_mimebundle_(**arguments)
        bundle = dict((live[0] if isinstance(live, tuple) else live) or {})
        bundle["text/plain"] = repr(self)
        if not self._ranks.closed:
            bundle["text/html"] = status(self._ranks)._repr_html_()
        return (bundle, live[1]) if isinstance(live, tuple) else bundle


def _row(row: RankStack) -> dict[str, Any]:
    """A row in words, as the page shows it."""
    dead = row.state is State.DEAD
    return {
        "rank": row.rank,
        "kind": row.state.name.lower(),
        "state": f"{row.state} ({row.why})" if row.why else str(row.state),
        "seconds": "" if dead else _seconds(row.seconds),
        "place": row.place,
        "code": row.line.code if row.line is not None else "",
        "waits": str(row.collective or ""),
        "memory": format_bytes(row.bytes_resident),
        "gpu": format_bytes(row.bytes_gpu),
        "stack": [str(frame) for frame in row.frames],
        "dead": dead,
    }


def _seconds(seconds: float) -> str:
    """Whole seconds, so that a row changes once a second; minutes and hours when there are."""
    return time.strftime("%-H:%M:%S" if seconds >= 3600 else "%-M:%S", time.gmtime(seconds))
