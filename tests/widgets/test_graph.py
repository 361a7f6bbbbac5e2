"""The graph picture's kernel side; how it moves is tested in a browser."""

import xml.etree.ElementTree as ET

import numpy as np

from kit.graph.record import Graph, Kind, Phase
from widgets.graph import GraphPicture


def make_graph() -> Graph:
    """Input, three layers, one collective, output: a chain."""
    kinds = (Kind.INPUT, *[Kind.COMPUTE] * 3, Kind.COLLECTIVE, Kind.OUTPUT)
    n = len(kinds)
    return Graph(
        name="chain",
        names=tuple(f"n{i}" for i in range(n)),
        targets=("", "aten.mm.default", "aten.relu.default", "aten.mm.default", "c10d.all_reduce_.default", ""),
        kinds=kinds,
        phases=(Phase.FORWARD,) * n,
        modules=("", "blocks.0", "blocks.0", "blocks.1", "", ""),
        sources=("", *["model.py:3: x = <b>self.a</b>(x)"] * 3, "", ""),
        shapes=("float32[8, 16]",) * n,
        groups=("", "", "", "", "0", ""),
        parameter=("",) * n,
        bytes_out=np.full(n, 512, np.int64),
        bytes_moved=np.full(n, 1024, np.int64),
        flops=np.full(n, 4096.0),
        storage=np.arange(n, dtype=np.int32),
        mutates=np.full(n, -1, np.int32),
        edge_from=np.arange(n - 1, dtype=np.int32),
        edge_to=np.arange(1, n, dtype=np.int32),
    )


def test_the_picture_is_the_svg_of_the_kit() -> None:
    picture = GraphPicture(make_graph())
    assert ET.fromstring(picture.svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert repr(picture).startswith("GraphPicture(Graph('chain': 6 nodes, 5 edges, 1 collectives")


def test_arguments_of_the_drawing_are_passed_on() -> None:
    assert "My title" in GraphPicture(make_graph(), title="My title").svg


def test_pages_without_a_kernel_get_the_svg_itself() -> None:
    picture = GraphPicture(make_graph())
    shown, _ = picture._repr_mimebundle_()
    assert shown["image/svg+xml"] == picture.svg
    assert "application/vnd.jupyter.widget-view+json" in shown


def test_the_face_names_no_other_machine() -> None:
    picture = GraphPicture(make_graph())
    assert "http" not in str(picture._esm)
    assert "http" not in str(picture._css)
