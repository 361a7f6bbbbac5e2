"""The exported page: fallbacks instead of widgets, and nothing that another machine would have to send."""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from kit.export_html import WIDGET_VIEW, ExportError, drop_foreign_elements, notebook_to_html

SVG = '<svg xmlns="http://www.w3.org/2000/svg"><title>the tip</title><text>from svg</text></svg>'


def write(path: Path, **shown: str) -> Path:
    """A notebook with one output of several forms (mime type parts joined by two underscores)."""
    data = {name.replace("__", "/").replace("_xml", "+xml"): value for name, value in shown.items()}
    output = v4.new_output("display_data", data={WIDGET_VIEW: {"model_id": "abc"}, "text/plain": "plain", **data})
    notebook = v4.new_notebook(cells=[v4.new_markdown_cell("$x^2$"), v4.new_code_cell("1", outputs=[output])])
    state = {"state": {"abc": {"model_name": "VBoxModel", "model_module": "x", "model_module_version": "1"}}}
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": state}
    nbformat.write(notebook, path)
    return path


def test_a_widget_is_shown_by_its_html(tmp_path: Path) -> None:
    page = notebook_to_html(write(tmp_path / "a.ipynb", text__html="<table><tr><td>fallback</td></tr></table>"))
    assert page == tmp_path / "a.html"
    assert "<td>fallback</td>" in page.read_text()
    assert "widget-view" not in page.read_text()


def test_a_widget_is_shown_by_its_svg_inline_so_that_tips_work(tmp_path: Path) -> None:
    page = notebook_to_html(write(tmp_path / "a.ipynb", image__svg_xml=SVG), to=tmp_path / "b.html")
    assert "<title>the tip</title>" in page.read_text()


def test_a_widget_with_only_its_view_keeps_its_words(tmp_path: Path) -> None:
    assert "plain" in notebook_to_html(write(tmp_path / "a.ipynb")).read_text()


def test_no_element_of_the_page_asks_another_machine(tmp_path: Path) -> None:
    page = notebook_to_html(write(tmp_path / "a.ipynb", image__svg_xml=SVG)).read_text()
    elements = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page)
    assert [e for e in elements if "//" in e] == []
    scripts = re.findall(r"<script\b.*?</script>", page, re.DOTALL)
    assert [s for s in scripts if "http" in s] == []
    assert re.findall(r"@import|url\(\s*[\"']?(?:https?:)?//", page) == []


def test_the_notebook_itself_is_left_as_it_was(tmp_path: Path) -> None:
    source = write(tmp_path / "a.ipynb", image__svg_xml=SVG)
    before = source.read_bytes()
    notebook_to_html(source)
    assert source.read_bytes() == before


@pytest.mark.parametrize(
    "element",
    [
        '<script src="https://cdn.example.org/a.js"></script>',
        "<script type='module'>import x from 'https://cdn.example.org/a.mjs';</script>",
        '<link rel="stylesheet" href="//cdn.example.org/a.css">',
        '<img alt="x" src="http://example.org/a.png">',
    ],
)
def test_foreign_elements_are_dropped(element: str) -> None:
    assert drop_foreign_elements(f"<p>before</p>{element}<p>after</p>") == "<p>before</p><p>after</p>"


@pytest.mark.parametrize(
    "element",
    [
        "<script>const half = 1 // 2;\n</script>",
        '<img src="data:image/png;base64,AA//BB/">',
        '<a href="https://pytorch.org">a link is followed only by a click</a>',
    ],
)
def test_own_elements_and_links_are_kept(element: str) -> None:
    assert drop_foreign_elements(element) == element


def test_a_file_that_is_no_notebook_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text("hello")
    with pytest.raises(ExportError, match=r"a\.ipynb: .*; expected a Jupyter notebook"):
        notebook_to_html(path)
