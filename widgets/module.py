"""Make one ES module, and one style sheet, of the files that a view is written in.

anywidget hands a view one module, loaded from memory, where an import of a neighbour has no address. So what views
share (`canvas.js`: axis, gestures, theme; `view.css`: buttons, search, focus) is put in front of a view's own code, in
order, without a bundler.
"""

from pathlib import Path

_HERE = Path(__file__).parent


def module_of(*names: str) -> str:
    """The text of the files, one after the other; only the last may export."""
    return _joined(names)


def styles_of(*names: str) -> str:
    """The styles that all views share, then those of the files; the view's element has the class `kit-view`."""
    return _joined(("view.css", *names))


def _joined(names: tuple[str, ...]) -> str:
    return "\n".join((_HERE / name).read_text(encoding="utf-8") for name in names)
