"""Modules of the person's that are edited after a rank has imported them.

Python would go on with the old code without a word. A rank looks at the files after every call and tells what has
changed; `reload_changed` runs the new text in the same module and puts new functions and classes in the place of the
old ones, in the cells' namespace and in the person's other modules. Objects made before keep their old class.
"""

import linecache
import struct
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from kit.ranks.failure import is_users

Stamp = tuple[int, int]


class ImportedModules:
    """The person's modules in this process, each with time and length of the text that it was made of."""

    def __init__(self) -> None:
        self._made_of: dict[str, Stamp | None] = {}
        self._told: dict[str, Stamp] = {}
        self._count = 0

    def notice(self) -> None:
        """Take in what was imported since the last time."""
        if len(sys.modules) == self._count:
            return
        self._count = len(sys.modules)
        for name, module in list(sys.modules.items()):
            file = _file_of(name)
            if name not in self._made_of and file.startswith("/") and file.endswith(".py") and is_users(file):
                self._made_of[name] = _stamp_of_import(module, file)

    def changed(self) -> list[str]:
        """The modules whose file is another than the one they were made of."""
        found = []
        for name, made_of in self._made_of.items():
            now = _stamp(_file_of(name))
            if now is not None and now != made_of:
                found.append(name)
        return found

    def take_news(self) -> tuple[str, ...]:
        """Changed modules that were not told yet in their present state."""
        self.notice()
        news = []
        for name in self.changed():
            now = _stamp(_file_of(name))
            if now is not None and self._told.get(name) != now:
                self._told[name] = now
                news.append(name)
        return tuple(news)

    def reload_changed(self, namespace: dict[str, Any]) -> list[str]:
        """Run the new text of changed modules; their names. Raises what the text raises."""
        self.notice()
        names = self.changed()
        for name in names:
            module, file = sys.modules[name], _file_of(name)
            stamp = _stamp(file)
            before = dict(vars(module))
            linecache.checkcache(file)
            # Not importlib.reload: it would take a cached file for the new text when both are of one second and length.
            exec(compile(Path(file).read_bytes(), file, "exec"), vars(module))
            self._made_of[name] = stamp
            for place in (namespace, *(vars(sys.modules[other]) for other in self._made_of if other in sys.modules)):
                _rebind(place, module, before)
        return names


def _rebind(place: dict[str, Any], module: ModuleType, before: dict[str, Any]) -> None:
    """Functions and classes that `module` had before become what it has under the same name now."""
    for name, value in list(place.items()):
        if not isinstance(value, (type, FunctionType)) or value.__module__ != module.__name__:
            continue
        own = value.__name__
        if before.get(own) is value and own in vars(module):
            place[name] = vars(module)[own]


def _file_of(name: str) -> str:
    file = getattr(sys.modules.get(name), "__file__", None)
    return file if isinstance(file, str) else ""  # some put objects there that answer to every name


def _stamp(file: str) -> Stamp | None:
    try:
        found = Path(file).stat()
    except OSError:  # deleted: the old code is all there is
        return None
    return found.st_mtime_ns, found.st_size


def _stamp_of_import(module: ModuleType, file: str) -> Stamp | None:
    """The file's stamp, unless its cached code shows that it was edited after the import already: None then."""
    now = _stamp(file)
    try:
        head = Path(str(getattr(module, "__cached__", ""))).read_bytes()[:16]
        flags, seconds, length = struct.unpack("<4xIII", head)
    except (OSError, struct.error):  # no cached code
        return now
    if now is None or flags != 0:
        return now
    return now if (now[0] // 10**9 & 0xFFFFFFFF, now[1] & 0xFFFFFFFF) == (seconds, length) else None
