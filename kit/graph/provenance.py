"""Where a node comes from: phase, module path and the user's own source line.

Three writers leave traces in `node.meta`: the kit's own step tracer (`custom` with `kit_*` keys, most
trusted), torch's module stacks (a backward node carries `fwd_nn_module_stack` instead), and a
`stack_trace` whose last frames lie inside torch: the line a person wants is further up.
"""

import re
import site
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

from kit.graph.record import Phase

_FRAME = re.compile(r'File "([^"]+)", line (\d+)(?:, in [^\n]*)?(?:\n[ \t]+([^\n]*))?')
_INDEX = re.compile(r"\[['\"]?([^'\"\]]+)['\"]?\]")


def phase_of(meta: dict[str, Any]) -> Phase | None:
    """The phase a node's metadata states; None when it states none."""
    stated = _custom(meta).get("kit_phase")
    if stated is not None:
        try:
            return Phase(stated)
        except ValueError as error:
            raise ValueError(f"kit_phase {stated!r} in node metadata; expected one of {', '.join(Phase)}") from error
    if meta.get("autograd_backward") or meta.get("partitioner_tag") == "is_backward":
        return Phase.BACKWARD
    if meta.get("fwd_nn_module_stack") and not meta.get("nn_module_stack"):
        return Phase.BACKWARD
    return None


def module_of(meta: dict[str, Any]) -> str:
    """The dotted path of the innermost module, `blocks.0.attn`; "" when unknown or the root."""
    stated = _custom(meta).get("kit_module")
    if stated is not None:
        return str(stated)
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
    for path, kind in reversed(list(stack.values())):
        if "parametri" not in str(kind).lower():
            return _plain_path(str(path))
    return ""


def source_of(meta: dict[str, Any]) -> str:
    """The user's own line as `file:line: code`; "" when the trace has none.

    The last frame outside torch, the standard library, installed packages and this kit; when a model
    itself is an installed package, the last frame of that package.
    """
    stated = _custom(meta).get("kit_source")
    if stated is not None:
        return str(stated)
    return user_line(meta.get("stack_trace") or "")


def user_line(stack_trace: str) -> str:
    """The user's own line of a formatted traceback, as `file:line: code`; "" when there is none."""
    frames = [(file, int(line), code.strip()) for file, line, code in _FRAME.findall(stack_trace)]
    found = user_frame(frames)
    return f"{found[0]}:{found[1]}: {found[2]}" if found else ""


def user_frame(frames: list[tuple[str, int, str]]) -> tuple[str, int, str] | None:
    """The last frame (file, line, code) that a user wrote; None when there is none.

    Frames of installed packages count only when no other is there.
    """
    installed = None
    for frame in reversed(frames):
        match _owner(frame[0]):
            case "user":
                return frame
            case "installed":
                installed = installed or frame
    return installed


@cache
def _owner(file: str) -> str:
    """Who wrote a file: user, installed (a package other than torch and kit) or machinery."""
    if file.startswith("<"):  # a cell (`<cell 7>`, `<ipython-input-..>`) is the user's own
        return "machinery" if file.startswith(("<eval_with_key>", "<frozen ", "<string>", "<built-in")) else "user"
    here = Path(__file__).parents[1]
    path = Path(file)
    if path.is_relative_to(here) or path.is_relative_to(here.parent / "widgets"):
        return "machinery"
    packages = [Path(folder) for folder in {*site.getsitepackages(), sysconfig.get_path("purelib")}]
    if "site-packages" in path.parts or any(path.is_relative_to(folder) for folder in packages):
        return "machinery" if "torch" in path.parts else "installed"
    if "torch" in path.parts and {"nn", "fx", "_dynamo", "autograd", "distributed"} & set(path.parts):
        return "machinery"  # a torch built in place, outside site-packages
    standard = sysconfig.get_path("stdlib")
    return "machinery" if path.is_relative_to(standard) else "user"


def _plain_path(path: str) -> str:
    """`L['self'].blocks[0].attn` and `_modules['blocks']` spellings as `blocks.0.attn`."""
    path = re.sub(r"^L\[['\"]\w+['\"]\]\.?", "", path)
    path = _INDEX.sub(r".\1", path)
    return ".".join(part for part in path.split(".") if part and part not in ("_modules", "self"))


def _custom(meta: dict[str, Any]) -> dict[str, Any]:
    custom = meta.get("custom")
    return custom if isinstance(custom, dict) else {}
