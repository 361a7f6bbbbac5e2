"""An interactive kit for distributed static-graph training with PyTorch.

The public names are resolved when they are first used, so `import kit` is quick and does not
import torch. In a notebook, `%load_ext kit` adds the `%%ranks` magics and lets records show themselves.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kit.archive import load as load
    from kit.archive import save as save
    from kit.display import draw as draw
    from kit.display import table as table
    from kit.ranks import RankError as RankError
    from kit.ranks import launch as launch
    from kit.ranks import shutdown as shutdown
    from kit.step.hardware import Hardware as Hardware
    from kit.step.planning import plan as plan
    from kit.step.precision import Precision as Precision
    from kit.step.strategy import DDP as DDP
    from kit.step.strategy import FSDP as FSDP
    from kit.step.strategy import HSDP as HSDP
    from kit.timeline.read import read as read
    from kit.tuning.search import settings_for as settings_for
    from kit.verbs import capture as capture
    from kit.verbs import compare as compare
    from kit.verbs import compile_step as compile_step
    from kit.verbs import cut as cut
    from kit.verbs import profile as profile
    from kit.verbs import stages as stages
    from kit.verbs import tune as tune

_HOME = {
    "DDP": "kit.step.strategy",
    "FSDP": "kit.step.strategy",
    "Hardware": "kit.step.hardware",
    "HSDP": "kit.step.strategy",
    "Precision": "kit.step.precision",
    "RankError": "kit.ranks",
    "capture": "kit.verbs",
    "compare": "kit.verbs",
    "compile_step": "kit.verbs",
    "cut": "kit.verbs",
    "draw": "kit.display",
    "launch": "kit.ranks",
    "load": "kit.archive",
    "plan": "kit.step.planning",
    "profile": "kit.verbs",
    "read": "kit.timeline.read",
    "save": "kit.archive",
    "settings_for": "kit.tuning.search",
    "shutdown": "kit.ranks",
    "stages": "kit.verbs",
    "table": "kit.display",
    "tune": "kit.verbs",
}

__all__ = sorted(_HOME)

try:
    __version__ = version("static-graph-kit")
except PackageNotFoundError:  # a checkout that was not installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kit' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def load_ipython_extension(ipython: Any) -> None:
    """What `%load_ext kit` does: magics, and pictures for records."""
    from kit.display import register as register_pictures
    from kit.ranks.magics import register as register_magics

    register_magics(ipython)
    register_pictures(ipython)
