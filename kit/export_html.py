"""Turn a run notebook into one HTML page that a browser shows without a network.

Two things stand in the way. With saved widget state nbconvert shows the widget, drops its SVG or
table and asks a CDN for the code, so the state is left out and the fallback remains. And its page
loads require.js, MathJax and mermaid from a CDN, so their elements are taken out; formulas stay as TeX.
"""

import re
from pathlib import Path
from typing import Any

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

# Elements through which a page asks another machine: by an address, or by a script that names one.
_ELEMENT = re.compile(r"<(script|link|iframe|img)\b[^>]*>(?:.*?</\1\s*>)?", re.DOTALL | re.IGNORECASE)
_FOREIGN = re.compile(r"""["'(=\s](?:https?:)?//[a-z0-9.-]+\.[a-z]+/""", re.IGNORECASE)
_ADDRESS = re.compile(r"""\b(?:src|href)\s*=\s*["']?\s*(?:https?:)?//""", re.IGNORECASE)


class ExportError(ValueError):
    """A file that is no notebook that can be shown."""


def notebook_to_html(path: str | Path, *, to: str | Path | None = None) -> Path:
    """Write the page of a notebook beside it (or to `to`) and return where it lies.

    Widgets appear as the picture or table that they left beside their live view. Raises
    `ExportError` when the file is no notebook. Takes about a second.
    """
    import nbformat
    from nbconvert import HTMLExporter

    source = Path(path)
    try:
        notebook = nbformat.read(source, as_version=4)  # type: ignore[no-untyped-call]
    except (nbformat.reader.NotJSONError, nbformat.ValidationError, KeyError, AttributeError) as error:
        raise ExportError(f"{source}: {error}; expected a Jupyter notebook (.ipynb)") from error
    keep_fallbacks(notebook)
    exporter = HTMLExporter(template_name="lab", embed_images=True)  # type: ignore[no-untyped-call]
    body, _ = exporter.from_notebook_node(notebook, resources={"metadata": {"name": source.stem}})
    target = Path(to) if to is not None else source.with_suffix(".html")
    target.write_text(drop_foreign_elements(body), encoding="utf-8")
    return target


def keep_fallbacks(notebook: Any) -> None:
    """Remove the widget state and live views that have another form; show SVG inline.

    nbconvert would put an SVG into an `<img>`, where neither tooltips nor the page's colours work.
    """
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            shown = output.get("data", {})
            if WIDGET_VIEW in shown and set(shown) - {WIDGET_VIEW, "text/plain"}:
                del shown[WIDGET_VIEW]
            if "image/svg+xml" in shown and "text/html" not in shown:
                shown["text/html"] = shown.pop("image/svg+xml")


def drop_foreign_elements(page: str) -> str:
    """The page without scripts, style sheets, frames and pictures that another machine would have to send."""
    return _ELEMENT.sub(lambda found: "" if _asks_elsewhere(found.group(0)) else found.group(0), page)


def _asks_elsewhere(element: str) -> bool:
    opening = element[: element.index(">") + 1]
    if _ADDRESS.search(opening):
        return True
    is_data = "json" in opening.lower()
    return element.lower().startswith("<script") and not is_data and bool(_FOREIGN.search(element))
