"""The picture of a graph, to move about in: the kit's static SVG in a frame that scrolls and zooms.

The SVG is drawn by the kit from the record, so that this face, papermill and a web page show the same
picture; the module in `graph.js` only moves it.
"""

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from kit.graph.record import Graph
from kit.graph.svg import to_svg
from widgets.module import styles_of


class GraphPicture(anywidget.AnyWidget):
    """A `Graph` in a frame: `+` and `-` or Ctrl and wheel zoom, `0` fits, arrows and dragging move.

    `drawing` goes to `kit.graph.svg.to_svg` as it is. `height`: of the frame, in pixels.
    """

    _esm = Path(__file__).parent / "graph.js"
    _css = styles_of("graph.css")

    svg = traitlets.Unicode().tag(sync=True)
    description = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int(520).tag(sync=True)

    def __init__(self, graph: Graph, *, height: int = 520, **drawing: Any) -> None:
        self._graph = graph
        super().__init__(svg=str(to_svg(graph, **drawing)), description=repr(graph), height=height)

    def __repr__(self) -> str:
        return f"GraphPicture({self._graph!r})"

    def _repr_mimebundle_(self, **arguments: Any) -> Any:
        """The live view, and the SVG itself for pages without a kernel."""
        found = super()._repr_mimebundle_(**arguments)
        shown, described = found if isinstance(found, tuple) else (found or {}, {})
        return {**shown, "text/plain": repr(self), "image/svg+xml": self.svg}, described
