"""Events as today's profilers write them: narrower types than `kineto.Event`, so that whole columns are made at once.

The decoder looks at `ph` first. Only spans (`ph` X) become values with fields; of arrows, marks and metadata, three
events in ten, nothing is kept and their text is only passed over. What does not fit is a `ValidationError`, and
`kineto.Event` is asked.
"""

from typing import Any, Union

import msgspec

# Chrome's Trace Event Format, phases other than X.
_OTHER_PHASES = "BEiICbneSTpFstfPNODMVvRc(),="


class TypedArgs(msgspec.Struct, frozen=True, gc=False):
    """`kineto.Args`, the same fields in the same order: numbers are ints."""

    correlation: int = -1
    external: int = msgspec.field(default=-1, name="External id")
    sequence: int = msgspec.field(default=-1, name="Sequence number")
    device: int = -1
    stream: int = -1
    copied_bytes: int = msgspec.field(default=-1, name="bytes")
    collective: str | None = msgspec.field(default=None, name="Collective name")
    elements_in: int = msgspec.field(default=-1, name="In msg nelems")
    elements_out: int = msgspec.field(default=-1, name="Out msg nelems")
    dtype: str | None = None
    group_name: Any = msgspec.field(default=None, name="Process Group Name")
    group_description: Any = msgspec.field(default=None, name="Process Group Description")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    graph: int = msgspec.field(default=-1, name="graph id")
    node: int = msgspec.field(default=-1, name="graph node id")


_NO_TYPED_ARGS = TypedArgs()


class TypedSpan(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """`kineto.Event` of a span, the same fields in the same order."""

    cat: str | None = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: float | None = None
    dur: float | None = None
    args: TypedArgs = _NO_TYPED_ARGS


_OTHERS = [msgspec.defstruct("Other", [], tag_field="ph", tag=phase, gc=False) for phase in _OTHER_PHASES]


def typed_decoder() -> "msgspec.json.Decoder[Any]":
    """Decodes a list of events; those that are no spans come as empty structs."""
    return msgspec.json.Decoder(list[Union[TypedSpan, *_OTHERS]])  # type: ignore[valid-type]
