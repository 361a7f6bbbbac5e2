"""Functions that are nothing but code go to a rank once; after that a number is enough.

Packing and unpacking a function takes longer than waking two ranks does. It can be spared where the function means the
same each time: one of the notebook or script itself, with no closure, defaults or attributes, whose globals are modules
of libraries. Whatever names a value of the person's goes whole with every call, since the value may have changed.
A rank makes a new function of the code for every call, with globals of its own, as unpickling does.
"""

import pickle
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from kit.ranks.failure import is_users

SLOTS = 128  # functions that a rank keeps; with more in turn they go whole again
_HARMLESS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_LOOKED_AT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """A function under a number: what it was when it was packed."""

    code: CodeType
    number: int
    qualname: str
    modules: dict[str, ModuleType]  # the globals it names
    count: int  # of all modules then: cloudpickle has a rank import those of a package that the code names
    packed: bytes


class SentFunctions:
    """The controller's side: which functions of a group have a number."""

    def __init__(self) -> None:
        self._sent: dict[int, _Sent] = {}  # id of the code -> function; holds the code, so that the id stays its own
        self._names: dict[int, tuple[CodeType, frozenset[str] | None]] = {}
        self._slots: list[int] = [0] * SLOTS
        self._next = 0

    def number_of(self, function: Callable[..., Any], pack: Callable[[Any], bytes]) -> tuple[int, bytes] | None:
        """Number and pickle of a function that is nothing but code; None for another. Raises what `pack` raises."""
        if type(function) is not FunctionType or function.__module__ != "__main__":  # others go by name, or may
            return None
        if function.__closure__ or function.__defaults__:
            return None
        if function.__kwdefaults__ or function.__dict__ or not _are_plain(function.__annotations__.values()):
            return None
        code = function.__code__
        modules = self._modules_of(code, function.__globals__)
        if modules is None:
            return None
        sent = self._sent.get(id(code))
        if (
            sent is None
            or sent.modules != modules
            or sent.count != len(sys.modules)
            or sent.qualname != function.__qualname__
        ):
            sent = self._number(function, modules, pack)
        return sent.number, sent.packed

    def _number(self, function: FunctionType, modules: dict[str, ModuleType], pack: Callable[[Any], bytes]) -> _Sent:
        packed = pack(function)
        number, code = self._next, function.__code__
        self._next += 1
        before = self._sent.get(self._slots[number % SLOTS])
        if before is not None and before.number == number - SLOTS:
            del self._sent[id(before.code)]
        self._slots[number % SLOTS] = id(code)
        sent = self._sent[id(code)] = _Sent(
            code=code, number=number, qualname=function.__qualname__, modules=modules, count=len(sys.modules),
            packed=packed,
        )  # fmt: skip
        return sent

    def _modules_of(self, code: CodeType, given: dict[str, Any]) -> dict[str, ModuleType] | None:
        """The modules of libraries among the globals that code names; None when it names anything else there."""
        known = self._names.get(id(code))
        if known is None:
            if len(self._names) >= _LOOKED_AT:
                self._names.clear()
            known = self._names[id(code)] = (code, _names(code))
        if known[1] is None:
            return None
        found: dict[str, ModuleType] = {}
        for name in known[1]:
            if name in given:
                value = given[name]
                if not isinstance(value, ModuleType) or not _is_library(value):
                    return None
                found[name] = value
        return found


class KnownFunctions:
    """A rank's side: functions by number."""

    def __init__(self) -> None:
        self._slots: dict[int, tuple[int, FunctionType]] = {}

    def learn(self, number: int, packed: bytes) -> None:
        """Keep a function. Raises what unpickling raises."""
        self._slots[number % SLOTS] = (number, pickle.loads(packed))

    def of(self, number: int) -> FunctionType:
        """A new function of the code with that number."""
        known, kept = self._slots[number % SLOTS]
        if known != number:
            raise LookupError(f"function number {number} is not on this rank; expected it to be sent first")
        new = FunctionType(kept.__code__, dict(kept.__globals__), kept.__name__)
        new.__module__, new.__qualname__ = kept.__module__, kept.__qualname__
        new.__doc__, new.__annotations__ = kept.__doc__, dict(kept.__annotations__)
        return new


def _names(code: CodeType) -> frozenset[str] | None:
    """The names in code and its comprehensions; None when it makes functions, whose code must be new in each call."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _names(constant) if constant.co_name in _HARMLESS else None
            if inner is None:
                return None
            names |= inner
    return frozenset(names)


def _are_plain(annotations: Iterable[Any]) -> bool:
    for kind in annotations:
        if kind is not None and type(kind) is not str and (type(kind) is not type or kind.__module__ != "builtins"):
            return False
    return True


def _is_library(module: ModuleType) -> bool:
    name = module.__name__
    if sys.modules.get(name) is not module:
        return False
    if name.partition(".")[0] in sys.stdlib_module_names:
        return True
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and not is_users(file)
