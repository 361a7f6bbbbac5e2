"""Numbers and names as a picture or table shows them: short, with a unit, and safe to put in markup."""

from html import escape
from pathlib import PurePath

# Widths of the characters " " to "~" in hundredths of the font size: DejaVu Sans Bold, the widest of the
# usual fonts, read from its tables. The plain weight is 0.9 of it, or a little less.
_WIDTHS = bytes.fromhex(
    "232e35544665581f2e2e3554262a26254646464646464646464628285454543b644e4d4a544545535426264e40645456"
    "4a564e4945524e6f4e49492e252e54323244483c48442c4848232343236948454848323c3048425d41423b48254854"
)
_OTHER = 85  # a character outside ASCII


def bytes_text(count: float) -> str:
    """`3.15 MB`; decimal units, three figures."""
    return _scaled(count, "B")


def flops_text(count: float) -> str:
    """`67.1 MFLOP`; decimal units, three figures."""
    return _scaled(count, "FLOP")


def _scaled(count: float, unit: str) -> str:
    for power, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= power:
            return f"{count / power:.3g} {prefix}{unit}"
    return f"{count:.3g} {unit}"


def text_width(text: str, size: float, *, weight: int = 400) -> float:
    """The width in pixels of `text` in a sans-serif font of `size` pixels, or a little more.

    `weight` as in CSS: 600 and more is bold.
    """
    hundredths = sum(_WIDTHS[ord(c) - 32] if " " <= c <= "~" else _OTHER for c in text)
    return hundredths / 100 * size * (1.0 if weight >= 600 else 0.93)


def fitted(text: str, width: float, size: float, *, weight: int = 400) -> str:
    """`text` cut with an ellipsis so that it is at most `width` pixels wide.

    A dotted path loses its beginning, as its end tells it apart; other text loses its end.
    """
    if text_width(text, size, weight=weight) <= width:
        return text
    path = "." in text and " " not in text
    while text and text_width(text + "…", size, weight=weight) > width:
        text = text[1:] if path else text[:-1]
    return f"…{text}" if path else f"{text}…"


def source_text(source: str) -> str:
    """A source line with the file's name in place of its path: `model.py:12: x = self.norm(x)`.

    The file that a notebook's kernel makes for a cell is called `cell`.
    """
    file, colon, rest = source.partition(":")
    path = PurePath(file)
    is_cell = path.parent.name.startswith("ipykernel_") or path.name.startswith("<ipython-input")
    return f"{'cell' if is_cell else path.name}{colon}{rest}"


def safe(text: str) -> str:
    """`text` for SVG and HTML: markup escaped, control characters (not allowed in XML) shown as `?`."""
    return escape("".join(c if c.isprintable() or c == "\n" else "?" for c in text), quote=True)
