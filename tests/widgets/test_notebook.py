"""Progress in a real kernel: lines under papermill, sent from any thread to the cell that runs."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import v4

from kit.progress import Event, State
from kit.run_notebook import run_notebook
from widgets.notebook import CellWriter, RowsFace, find_kernel, format_rows
from widgets.progress import Row

LONG_WORK = """
import threading, time
from kit import progress
from widgets import show_progress

def work():
    with progress.task('build', total=2) as task:
        time.sleep(2.4)
        task.advance('first')
        time.sleep(0.3)

show_progress()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


class Session:
    """A Jupyter session that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any], str]] = []

    def send(self, socket: object, kind: str, content: dict[str, Any], *, parent: Any, ident: bytes) -> None:
        self.sent.append((kind, content, parent["header"]["msg_id"]))


class Kernel:
    """As much of ipykernel as is used: it runs the cell `cell`."""

    def __init__(self) -> None:
        self.session, self.iopub_socket, self.cell = Session(), object(), "cell-1"

    def get_parent(self, channel: str) -> dict[str, Any]:
        return {"header": {"msg_id": self.cell}}


def row(*, task: str = "build", state: State = State.RUNNING) -> Row:
    event = Event(key=task, task=task, state=state, done=1, total=4, message="", seconds=2.0)
    return Row(event=event, seconds=2.0)


@pytest.mark.notebook
def test_under_papermill_the_work_of_a_thread_leaves_plain_lines_in_its_cell(tmp_path: Path) -> None:
    notebook = v4.new_notebook(cells=[v4.new_code_cell(LONG_WORK), v4.new_code_cell("1")])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, tmp_path / "work.ipynb")
    run = run_notebook(tmp_path / "work.ipynb", out=tmp_path / "out")
    first, second = nbformat.read(run.notebook, as_version=4).cells
    lines = "".join(o["text"] for o in first.outputs if o.get("name") == "stdout").splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("build: ")
    assert lines[1].startswith("build: finished in 2.")
    assert not any(o.get("name") == "stdout" for o in second.outputs)


def test_a_process_without_ipython_is_no_kernel() -> None:
    assert find_kernel() is None


def test_text_is_sent_under_the_running_cell() -> None:
    kernel = Kernel()
    CellWriter(kernel).write("hello")
    assert kernel.session.sent == [("stream", {"name": "stdout", "text": "hello"}, "cell-1")]


def test_rows_of_one_cell_share_a_display_that_is_updated() -> None:
    kernel = Kernel()
    face = RowsFace(kernel)
    face.draw([row()])
    face.draw([row(task="profile"), row(state=State.FINISHED)])
    (first, opened, _), (second, updated, _) = kernel.session.sent
    assert (first, second) == ("display_data", "update_display_data")
    assert opened["transient"] == updated["transient"]
    assert updated["data"]["text/plain"] == "build: finished in 2.0 s\nprofile: 1/4, 2.0 s"


def test_rows_of_the_next_cell_are_a_display_of_their_own() -> None:
    kernel = Kernel()
    face = RowsFace(kernel)
    face.draw([row()])
    kernel.cell = "cell-2"
    face.draw([row(task="profile")])
    (_, one, _), (kind, two, cell) = kernel.session.sent
    assert (kind, cell) == ("display_data", "cell-2")
    assert one["transient"] != two["transient"]
    assert "build" not in two["data"]["text/plain"]


def test_a_row_is_escaped_and_its_bar_named() -> None:
    html = format_rows([row(task="<b>")])
    assert '<progress value="1" max="4" aria-label="&lt;b&gt;: 1/4, 2.0 s"' in html
    assert "<b>" not in html
