import io

import pytest

from kit.timeline.window import Window

TEXT = bytes(range(200))


def seen(window: Window) -> bytes:
    return bytes(window.view[window.begin : window.end])


@pytest.mark.parametrize("expected", [None, 0, 200, 500])
@pytest.mark.parametrize("piece", [1, 7, 64, 1000])
def test_pieces_follow_each_other_and_what_was_not_taken_stays(expected: int | None, piece: int) -> None:
    window = Window(io.BytesIO(TEXT), piece, expected_bytes=expected)
    taken = b""
    while window.more():
        assert seen(window) == TEXT[len(taken) :][: len(window)]
        take = len(window) * 2 // 3
        taken += seen(window)[:take]
        window.begin += take
    assert taken + seen(window) == TEXT


@pytest.mark.parametrize("expected", [0, 200, 500])
def test_a_text_that_is_kept_can_be_read_again_and_on(expected: int) -> None:
    window = Window(io.BytesIO(TEXT), 64, expected_bytes=expected)
    window.more()
    window.begin = window.end
    window.more()
    assert window.whole() == TEXT[: len(window.whole())]
    again = window.rewound()
    assert again.more()
    assert seen(again) == TEXT[: len(again)]
    while again.more():
        pass
    assert seen(again) == again.whole() == TEXT


def test_a_window_that_keeps_nothing_stays_small() -> None:
    window = Window(io.BytesIO(bytes(100_000)), 100)
    while window.more():
        window.begin = window.end - 30
    assert len(window.view) == 200
