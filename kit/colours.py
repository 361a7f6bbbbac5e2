"""The one table of colours of all pictures, light and dark; a second cue stands beside each colour.

Values are matplotlib's `okabe_ito` and `petroff10` palettes, written out because `import kit` must not
import matplotlib; a test holds them against it. Colour never speaks alone: communication is hatched,
phases carry a letter, parts and ranks a number.
"""

OKABE_ITO = ("#000000", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7")
PETROFF10 = (
    "#3f90da",
    "#ffa90e",
    "#bd1f01",
    "#94a4a2",
    "#832db6",
    "#a96b59",
    "#e76300",
    "#b9ac70",
    "#717581",
    "#92dadd",
)

COMPUTE = OKABE_ITO[5]  # blue; solid
EXPOSED = OKABE_ITO[6]  # vermillion: communication that nothing hides; hatch //, thick edge
HIDDEN = OKABE_ITO[1]  # orange: communication under computation; hatch //, thin edge
COPY = OKABE_ITO[7]  # purple; dots
IDLE = "#8c8c8c"  # neutral grey: idle, waiting; empty with outline
FORWARD = OKABE_ITO[2]  # sky; letter F
BACKWARD = OKABE_ITO[3]  # green; letter B
OPTIMIZER = OKABE_ITO[4]  # yellow with outline; letter O
OPERATOR_OF_HOST = PETROFF10[3]  # grey-green: what a host thread runs; rows of its own
LAUNCH = PETROFF10[8]  # dark grey: calls that launch; dots
RANGE = PETROFF10[7]  # olive: named ranges of the host; rows of its own

HATCH = "//"  # of communication, in matplotlib's spelling
DOTS = ".."  # of copies


def of_number(number: int) -> str:
    """The colour of a part or rank; ten in order, then again from the first (the number is the cue)."""
    return PETROFF10[number % len(PETROFF10)]


def ink_on(background: str) -> str:
    """Black or white, whichever reads better on a colour `#rrggbb` (WCAG contrast)."""
    luminance = _luminance(background)
    return "#000000" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "#ffffff"


def _luminance(colour: str) -> float:
    """Relative luminance, 0 black to 1 white (WCAG 2.2)."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
