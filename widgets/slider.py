"""A slider over named choices, on the browser's own range input.

ipywidgets' SelectionSlider gives screen readers a handle without a name that reads positions, not
choices; the native input answers keyboard and mouse by itself and can say what is chosen.
"""

from collections.abc import Sequence
from pathlib import Path

import anywidget
import traitlets


class ChoiceSlider(anywidget.AnyWidget):
    """One of several choices in order; `index` is the place of the chosen one.

    `choices`: the words on the scale, short. `spoken`: what a screen reader says for each.
    """

    _esm = Path(__file__).parent / "slider.js"
    _css = Path(__file__).parent / "slider.css"

    description = traitlets.Unicode().tag(sync=True)
    choices = traitlets.List(traitlets.Unicode()).tag(sync=True)
    spoken = traitlets.List(traitlets.Unicode()).tag(sync=True)
    index = traitlets.Int(0).tag(sync=True)

    def __init__(self, *, description: str, choices: Sequence[str], spoken: Sequence[str], index: int = 0) -> None:
        if not choices or len(choices) != len(spoken):
            raise ValueError(
                f"{len(choices)} choices and {len(spoken)} spoken forms; expected at least one choice "
                "and as many spoken forms"
            )
        super().__init__(
            description=description,
            choices=list(choices),
            spoken=list(spoken),
            index=self._clip(index, len(choices)),
        )

    @staticmethod
    def _clip(index: int, count: int) -> int:
        return min(max(index, 0), count - 1)

    @traitlets.validate("index")
    def _keep_on_scale(self, proposal: dict[str, int]) -> int:
        return self._clip(proposal["value"], len(self.choices) or proposal["value"] + 1)
