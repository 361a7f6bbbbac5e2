"""An interactive kit for distributed static-graph training with PyTorch.

The public names are resolved when they are first used, so `import kit` is quick and does not
import torch. In a notebook, `%load_ext kit` adds the `%%ranks` magics and lets records show themselves.
"""

from importlib import import_module
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
    from kit.step.strategy import TP as TP
    from kit.step_kernels import attribute as attribute
    from kit.step_kernels import kernel_origins as kernel_origins
    from kit.timeline.hang import explain_hang as explain_hang
    from kit.timeline.logs import read_log as read_log
    from kit.timeline.measures import measure as measure
    from kit.timeline.read import read as read
    from kit.tuning.search import settings_for as settings_for
    from kit.verbs import capture as capture
    from kit.verbs import compare as compare
    from kit.verbs import compatibility as compatibility
    from kit.verbs import compile as compile  # noqa: A004
    from kit.verbs import compile_step as compile_step
    from kit.verbs import cut as cut
    from kit.verbs import explain as explain
    from kit.verbs import plan_on as plan_on
    from kit.verbs import profile as profile
    from kit.verbs import representations as representations
    from kit.verbs import stages as stages
    from kit.verbs import startup as startup
    from kit.verbs import tune as tune

_HOME = {
    "DDP": "kit.step.strategy",
    "FSDP": "kit.step.strategy",
    "Hardware": "kit.step.hardware",
    "HSDP": "kit.step.strategy",
    "Precision": "kit.step.precision",
    "RankError": "kit.ranks",
    "TP": "kit.step.strategy",
    "attribute": "kit.step_kernels",
    "capture": "kit.verbs",
    "compare": "kit.verbs",
    "compatibility": "kit.verbs",
    "compile": "kit.verbs",
    "compile_step": "kit.verbs",
    "cut": "kit.verbs",
    "draw": "kit.display",
    "explain": "kit.verbs",
    "explain_hang": "kit.timeline.hang",
    "kernel_origins": "kit.step_kernels",
    "launch": "kit.ranks",
    "load": "kit.archive",
    "measure": "kit.timeline.measures",
    "plan": "kit.step.planning",
    "plan_on": "kit.verbs",
    "profile": "kit.verbs",
    "read": "kit.timeline.read",
    "read_log": "kit.timeline.logs",
    "representations": "kit.verbs",
    "save": "kit.archive",
    "settings_for": "kit.tuning.search",
    "shutdown": "kit.ranks",
    "stages": "kit.verbs",
    "startup": "kit.verbs",
    "table": "kit.display",
    "tune": "kit.verbs",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _HOME:
        raise AttributeError(f"module 'kit' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def _version() -> str:
    # On first use: finding it costs 60 ms of CPU, a third of `import kit` and of reading a small trace.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("static-graph-kit")
    except PackageNotFoundError:  # a checkout that was not installed
        return "0+unknown"


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def load_ipython_extension(ipython: Any) -> None:
    """What `%load_ext kit` does: magics, and pictures for records."""
    from kit.display import register as register_pictures
    from kit.ranks.magics import register as register_magics

    register_magics(ipython)
    register_pictures(ipython)
