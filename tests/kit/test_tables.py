"""Tables as HTML: words that are too long for a page have places to break, and nothing of a cell is lost."""

import re
from html import unescape

from kit.tables import Table


def test_long_words_may_break_behind_their_joints_and_short_ones_never() -> None:
    code = "model.py:12: return x + self.down(F.gelu(self.up(self.norm2(<x>))))"
    shown = Table(head=("#", "name", "line"), rows=(("79.4 kB", "all_gather_into_tensor", code),), left=(1, 2))
    first, name, line = re.findall(r"<td style=\"([^\"]*)\">(.*?)</td>", shown._repr_html_())
    assert "white-space: nowrap" in first[0]
    assert "min-width: 19ch" in line[0]  # else many numbers would leave a line for each word
    assert name[1] == "all_gather_into_tensor"
    assert "self.<wbr>down(<wbr>F.<wbr>gelu(<wbr>" in line[1]
    assert unescape(line[1].replace("<wbr>", "")) == code
