"""Jupyter faces of the kit: live widgets that draw its records, and its progress.

The names are resolved when they are first used; the kit itself never imports this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from widgets.graph import GraphPicture as GraphPicture
    from widgets.progress import hide as hide_progress
    from widgets.progress import show as show_progress
    from widgets.ranks import RankPanel as RankPanel
    from widgets.timeline import TimelineView as TimelineView
    from widgets.tuner import Tuner as Tuner

_HOME = {
    "GraphPicture": ("widgets.graph", "GraphPicture"),
    "RankPanel": ("widgets.ranks", "RankPanel"),
    "TimelineView": ("widgets.timeline", "TimelineView"),
    "Tuner": ("widgets.tuner", "Tuner"),
    "hide_progress": ("widgets.progress", "hide"),
    "show_progress": ("widgets.progress", "show"),
}

__all__ = ["GraphPicture", "RankPanel", "TimelineView", "Tuner", "hide_progress", "show_progress"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'widgets' has no attribute {name!r}; it has {', '.join(__all__)}")
    module, attribute = _HOME[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
