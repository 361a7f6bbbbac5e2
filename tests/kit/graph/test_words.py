"""Numbers, widths and safe text."""

import matplotlib.font_manager
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.textpath import TextPath

from kit.graph.words import bytes_text, fitted, flops_text, safe, source_text, text_width


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (3_145_728, "3.15 MB"), (2e9, "2 GB"), (1.5e16, "15 PB")]
)
def test_bytes_are_decimal_with_three_figures(count: float, text: str) -> None:
    assert bytes_text(count) == text


def test_flops_have_their_unit() -> None:
    assert flops_text(67_108_864) == "67.1 MFLOP"


@pytest.mark.parametrize("weight", [400, 700])
@pytest.mark.parametrize("text", ["blocks.0-11.attn.out", "WIDE WORDS MMM", "illicit jill 11", "native_layer_norm"])
def test_a_width_is_at_least_that_of_dejavu_sans(text: str, weight: int) -> None:
    font = matplotlib.font_manager.FontProperties(family="DejaVu Sans", weight=weight)
    drawn = TextPath((0, 0), text, size=10, prop=font).get_extents().width
    assert drawn <= text_width(text, 10, weight=weight) <= 1.2 * drawn + 2


@given(text=st.text(max_size=40), width=st.floats(12, 300))
def test_fitted_text_fits(text: str, width: float) -> None:
    assert text_width(fitted(text, width, 11), 11) <= width


def test_a_path_loses_its_beginning_and_other_words_their_end() -> None:
    assert fitted("blocks.0.attn.out", 70, 11).endswith("attn.out")
    assert fitted("scaled dot product", 70, 11).startswith("scaled")


def test_a_source_line_shows_the_file_name_only() -> None:
    assert source_text("/home/me/model.py:3: a = b") == "model.py:3: a = b"
    assert source_text("") == ""


@pytest.mark.parametrize("file", ["/tmp/ipykernel_77/123.py", "<ipython-input-3-ab>"])
def test_the_file_of_a_notebook_cell_is_called_cell(file: str) -> None:
    assert source_text(f"{file}:3: a = b") == "cell:3: a = b"


def test_markup_and_control_characters_are_made_harmless() -> None:
    assert safe('<b a="1">&\'\x00\x1b') == "&lt;b a=&quot;1&quot;&gt;&amp;&#x27;??"
