"""Names that live on a rank: what can complete a text, and what an object is. Runs on the rank."""

import inspect
import re
import rlcompleter
from dataclasses import dataclass
from typing import Any

MAX_COMPLETIONS = 500
MAX_SHOWN = 1000
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\.?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Docs:
    """What is known of an object on a rank: its type, how it shows itself, its signature and its docstring."""

    name: str
    rank: int
    type: str
    shown: str
    signature: str
    doc: str
    file: str

    def __repr__(self) -> str:
        lines = [f"{self.name}: {self.type} on rank {self.rank}"]
        if self.signature:
            lines.append(f"Signature: {self.name}{self.signature}")
        lines.append(f"String form: {self.shown}")
        if self.file:
            lines.append(f"File: {self.file}")
        return "\n".join([*lines, "Docstring:", *self.doc.splitlines()] if self.doc else lines)


def complete(text: str, namespace: dict[str, Any]) -> list[str]:
    """Names and attributes that begin with `text`, a dotted name; only attributes are looked up, nothing is called."""
    if text and not _DOTTED.fullmatch(text):
        return []
    completer = rlcompleter.Completer(namespace)
    try:
        found = completer.attr_matches(text) if "." in text else completer.global_matches(text)
    except Exception:  # an attribute of the person's may do anything
        return []
    hidden = text.rpartition(".")[2] == ""
    plain = {name.rstrip("() ").rstrip(":") for name in found}
    return sorted(name for name in plain if not (hidden and name.rpartition(".")[2].startswith("_")))[:MAX_COMPLETIONS]


def describe(name: str, namespace: dict[str, Any], *, rank: int) -> Docs:
    """What a dotted name is. Raises NameError and AttributeError, and ValueError for another text."""
    if not _DOTTED.fullmatch(name) or name.endswith("."):
        raise ValueError(f"{name!r} is no name; expected one such as model or model.layers")
    head, *attributes = name.split(".")
    if head not in namespace:
        raise NameError(f"name {head!r} is not defined on rank {rank}")
    value = namespace[head]
    for attribute in attributes:
        value = getattr(value, attribute)
    shown = repr(value)
    return Docs(
        name=name,
        rank=rank,
        type=type(value).__qualname__,
        shown=shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]} ...",
        signature=_signature(value),
        doc=inspect.getdoc(value) or "",
        file=_file(value),
    )


def _signature(value: Any) -> str:
    if not callable(value):
        return ""
    try:
        return str(inspect.signature(value))
    except (TypeError, ValueError):  # built in
        return ""


def _file(value: Any) -> str:
    try:
        return inspect.getfile(value)
    except TypeError:  # an instance, or built in
        return ""
