"""The colour table against matplotlib's palettes and the contrast rule."""

import matplotlib
import matplotlib.colors
import pytest

from kit import colours


@pytest.mark.parametrize(("name", "ours"), [("okabe_ito", colours.OKABE_ITO), ("petroff10", colours.PETROFF10)])
def test_a_palette_is_matplotlibs(name: str, ours: tuple[str, ...]) -> None:
    if name not in matplotlib.color_sequences:
        pytest.skip(f"matplotlib {matplotlib.__version__} has no palette {name}")
    assert [matplotlib.colors.to_hex(colour) for colour in matplotlib.color_sequences[name]] == list(ours)


def test_the_meanings_are_those_of_the_design_table() -> None:
    table = {
        colours.COMPUTE: "#0072b2",
        colours.EXPOSED: "#d55e00",
        colours.HIDDEN: "#e69f00",
        colours.COPY: "#cc79a7",
        colours.FORWARD: "#56b4e9",
        colours.BACKWARD: "#009e73",
        colours.OPTIMIZER: "#f0e442",
    }
    assert list(table) == list(table.values())


def test_the_eleventh_part_starts_the_palette_again() -> None:
    assert colours.of_number(10) == colours.of_number(0) != colours.of_number(1)


@pytest.mark.parametrize("background", [*colours.OKABE_ITO, *colours.PETROFF10, "#ffffff", "#808080"])
def test_ink_is_readable_on_every_colour(background: str) -> None:
    assert _contrast(colours.ink_on(background), background) >= 4.5


def _contrast(one: str, other: str) -> float:
    """WCAG contrast by the published formula, written apart from the module's own."""
    lights = []
    for colour in (one, other):
        parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
                 for part in matplotlib.colors.to_rgb(colour)]  # fmt: skip
        lights.append(sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), parts, strict=True)))
    return (max(lights) + 0.05) / (min(lights) + 0.05)
