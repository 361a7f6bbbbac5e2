"""Run a notebook from the command line, as `make run` does, and say what it found.

`python -m kit.run_notebook notebooks/01_quickstart.ipynb --out out -p steps 20` shows each cell as it
runs, writes the executed notebook and a page that needs no network, and prints the text of the
cell tagged `findings`.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.export_html import notebook_to_html

CELL_SECONDS = 600  # a cell that takes longer hangs
SAY_EVERY_SECONDS = 10.0
# jupyter_client interrupts a kernel before it ends it, and ipykernel calls that an error on stderr.
QUIET_KERNEL = ["--IPKernelApp.log_level=50"]


class NotebookRunError(RuntimeError):
    """The notebook could not be run, or a cell of it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookRun:
    """What a run left: the executed notebook, its page, the text of its findings cell, the seconds it took."""

    notebook: Path
    page: Path
    findings: str
    seconds: float


def run_notebook(source: Path, *, out: Path, parameters: Mapping[str, Any] | None = None) -> NotebookRun:
    """Run every cell of `source` in a fresh kernel of this Python; outputs land in the folder `out`.

    Raises `NotebookRunError` when a parameter is not one of the notebook's or when a cell fails; what
    ran until then is in `out`. The kernel and what it started are over when this returns or raises.
    """
    from papermill.exceptions import PapermillExecutionError
    from papermill.execute import execute_notebook

    refuse_unknown_parameters(source, parameters or {})
    out.mkdir(parents=True, exist_ok=True)
    target = out / source.name
    begun = time.monotonic()
    with _cells_shown() as engine, _no_jupyter_server():
        try:
            execute_notebook(
                source, target, parameters=dict(parameters or {}), kernel_name="python3", engine_name=engine,
                progress_bar=False, execution_timeout=CELL_SECONDS, cwd=source.parent, config=ipc_config(),
                extra_arguments=QUIET_KERNEL,
            )  # fmt: skip
        except PapermillExecutionError as error:
            raise NotebookRunError(
                f"{source}, cell {error.cell_index + 1}: {error.ename}: {error.evalue}\n"
                f"What ran until then is in {target}; open it with make lab or in any Jupyter."
            ) from error
    return NotebookRun(
        notebook=target,
        page=notebook_to_html(target),
        findings=read_findings(target),
        seconds=time.monotonic() - begun,
    )


def ipc_config() -> Any:
    """Settings for a kernel on IPC sockets: two kernels that start at once cannot take one another's port."""
    from traitlets.config import Config

    return Config({"KernelManager": {"transport": "ipc"}})


def refuse_unknown_parameters(source: Path, parameters: Mapping[str, Any]) -> None:
    """Raise `NotebookRunError` for a name that the notebook's cell tagged `parameters` lacks.

    papermill itself only logs it and runs on with the default.
    """
    from papermill.inspection import inspect_notebook

    if not source.is_file():
        raise NotebookRunError(f"no notebook at {source.absolute()}; run this from the root of the repository")
    known = inspect_notebook(str(source))
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise NotebookRunError(
            f"{source} has no parameter {', '.join(unknown)}; expected one of {', '.join(known) or 'none at all'}"
        )


def read_findings(notebook: Path) -> str:
    """The text that the cell tagged `findings` left; "" when there is no such cell or it said nothing."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    tagged = [cell for cell in cells if "findings" in cell.get("metadata", {}).get("tags", [])]
    return "".join(_read_text(output) for cell in tagged for output in cell.get("outputs", [])).strip()


def _read_text(output: Mapping[str, Any]) -> str:
    """The plain text of one output, as nbformat stores it: a string or a list of lines."""
    if output.get("name") == "stderr":
        return ""
    text = output.get("text", output.get("data", {}).get("text/plain", ""))
    return text if isinstance(text, str) else "".join(text)


@contextmanager
def _no_jupyter_server() -> Iterator[None]:
    """Hide that this may be called from a notebook: the kernel started here has no page to draw on."""
    name = os.environ.pop("JPY_SESSION_NAME", None)
    try:
        yield
    finally:
        if name is not None:
            os.environ["JPY_SESSION_NAME"] = name


@contextmanager
def _cells_shown() -> Iterator[str]:
    """Name of a papermill engine that shows each cell as it runs: a bar in a terminal, else lines."""
    from papermill.engines import NBClientEngine, papermill_engines
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    bars = Progress(*columns, TextColumn("{task.description}", markup=False), console=console, transient=True)

    class ShownEngine(NBClientEngine):  # type: ignore[misc]  # papermill has no types
        """papermill's engine, which also tells the bar where it is."""

        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **arguments: Any) -> Any:
            follow_cells(nb_man, bars)
            return super().execute_managed_notebook(nb_man, kernel_name, **arguments)

    papermill_engines.register("kit-shown", ShownEngine)
    with bars:
        yield "kit-shown"


def follow_cells(manager: Any, bars: Any) -> None:
    """Make papermill's manager of a run move a bar: total, and the heading above the running cell."""
    titles = find_titles(manager.nb.cells)
    bar = bars.add_task("starting the kernel", total=len(titles))
    start, complete = manager.cell_start, manager.cell_complete
    said = [time.monotonic()]

    def cell_start(cell: Any, cell_index: int | None = None, **arguments: Any) -> None:
        title = titles[cell_index or 0]
        bars.update(bar, description=title, completed=cell_index or 0)
        if not bars.console.is_terminal and time.monotonic() - said[0] > SAY_EVERY_SECONDS:
            said[0] = time.monotonic()
            bars.console.print(f"cell {(cell_index or 0) + 1} of {len(titles)}: {title}", markup=False)
        start(cell, cell_index, **arguments)

    def cell_complete(cell: Any, cell_index: int | None = None, **arguments: Any) -> None:
        complete(cell, cell_index, **arguments)
        bars.update(bar, completed=(cell_index or 0) + 1)

    manager.cell_start, manager.cell_complete = cell_start, cell_complete


def find_titles(cells: Sequence[Any]) -> list[str]:
    """For each cell the last heading at or above it, without its marks."""
    titles, title = [], ""
    for cell in cells:
        if cell["cell_type"] == "markdown":
            headings = [line.lstrip("# ").strip() for line in cell["source"].splitlines() if line.startswith("#")]
            title = headings[-1] if headings else title
        titles.append(title)
    return titles


def read_parameter(text: str) -> Any:
    """A parameter as Python or JSON would write it (`2`, `0.5`, `true`), else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def main(arguments: Sequence[str]) -> int:
    """Read the command line, run, print what was found; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kit.run_notebook", description=__doc__)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    chosen = parser.parse_args(arguments)
    parameters = {name: read_parameter(value) for name, value in chosen.parameter}
    try:
        run = run_notebook(chosen.notebook, out=chosen.out, parameters=parameters)
    except NotebookRunError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command's own output
        return 1
    print(f"\n{run.findings}\n" if run.findings else "\n(no cell tagged findings said anything)\n")  # noqa: T201
    print(f"ran in {run.seconds:.0f} s")  # noqa: T201
    print(f"notebook  {run.notebook.absolute()}")  # noqa: T201
    print(f"page      {run.page.absolute()}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
