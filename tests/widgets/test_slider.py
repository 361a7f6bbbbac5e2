"""The slider's kernel side; its face is tested in a browser."""

import pytest

from widgets.slider import ChoiceSlider


def make_slider(index: int = 0) -> ChoiceSlider:
    return ChoiceSlider(description="Micro-batch", choices=["1", "2", "4"], spoken=["one", "two", "four"], index=index)


def test_an_index_beyond_the_scale_is_kept_on_it() -> None:
    slider = make_slider(index=9)
    assert slider.index == 2
    slider.index = -5
    assert slider.index == 0


def test_choices_without_a_spoken_form_are_refused() -> None:
    with pytest.raises(ValueError, match="2 choices and 1 spoken forms; expected at least one choice"):
        ChoiceSlider(description="x", choices=["1", "2"], spoken=["one"])


def test_the_face_is_local_and_names_no_other_machine() -> None:
    slider = make_slider()
    assert "http" not in str(slider._esm)
    assert "http" not in str(slider._css)
