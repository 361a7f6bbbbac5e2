import msgspec
import pytest

from kit.timeline.kineto import Args, Event
from kit.timeline.typed_events import TypedArgs, TypedSpan, typed_decoder


def test_the_fields_are_those_of_any_event_in_the_same_order() -> None:
    """Columns are made by place."""
    assert TypedArgs.__struct_fields__ == Args.__struct_fields__
    assert TypedArgs.__struct_encode_fields__ == Args.__struct_encode_fields__
    assert ("ph", *TypedSpan.__struct_fields__) == Event.__struct_fields__


def test_only_spans_become_values_with_fields() -> None:
    raw = b"""[{"ph": "s", "name": [], "ts": "x"}, {"name": "a", "ph": "X", "ts": 1.5, "args": {"stream": 7}},
        {"ph": "M", "args": {"stream": "x"}}, {"ph": "i"}, {"ph": "C"}, {"ph": "f", "bp": "e"}, {"ph": ")"}]"""
    first, span, *others = typed_decoder().decode(raw)
    assert (span.name, span.ts, span.args.stream) == ("a", 1.5, 7)
    assert not any(isinstance(event, TypedSpan) for event in (first, *others))


@pytest.mark.parametrize(
    "event",
    ['{"ph": "new"}', "{}", '{"ph": 5}', "7", '{"ph": "X", "args": {"stream": "7"}}', '{"ph": "X", "pid": 1.5}',
     '{"ph": "X", "args": null}', '{"ph": "X", "ph": "s"}'],
)  # fmt: skip
def test_what_does_not_fit_is_left_to_the_general_reader(event: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        typed_decoder().decode(f"[{event}]")
