"""Draw the visible nodes of a collapsed graph as SVG: box, stripe with the second cue, words, tooltip."""

from typing import NamedTuple

from kit import colours
from kit.graph.collapse_record import Collapsed
from kit.graph.describe_groups import operation
from kit.graph.record import Kind, Phase
from kit.graph.words import bytes_text, fitted, flops_text, safe, source_text, text_width

NODE_WIDTH, NODE_HEIGHT = 174.0, 36.0
STRIPE = 17.0
_LABEL, _SMALL = 11.0, 9.5  # font sizes

PHASE_COLOUR = {
    Phase.FORWARD: colours.FORWARD,
    Phase.BACKWARD: colours.BACKWARD,
    Phase.OPTIMIZER: colours.OPTIMIZER,
}
PHASE_LETTER = {Phase.FORWARD: "F", Phase.BACKWARD: "B", Phase.OPTIMIZER: "O"}


class Point(NamedTuple):
    """A place in the picture, in pixels; of a node its centre."""

    x: float
    y: float


def draw_node(shown: Collapsed, number: int, at: Point, *, prefix: str) -> str:
    """One node as an SVG group with its tooltip."""
    kind = shown.kinds[number]
    left, top = at.x - NODE_WIDTH / 2, at.y - NODE_HEIGHT / 2
    parts = [f'<g class="node"><title>{safe(tooltip(shown, number))}</title>']
    if shown.repeats[number] > 1:
        parts.append(_box("stack", left + 4, top - 4))
    holds_communication = bool(shown.collectives[number])
    parts.append(_box("wait" if kind is Kind.WAIT else "comm" if holds_communication else "box", left, top))
    if holds_communication:
        parts.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{NODE_WIDTH:g}" height="{NODE_HEIGHT:g}" rx="5" '
            f'fill="url(#{prefix}hatch)" opacity=".22"/>'
        )
    parts.append(_stripe(shown, number, left, top))
    parts.append(_words(shown, number, left, top))
    parts.append("</g>")
    return "".join(parts)


def _box(style: str, left: float, top: float) -> str:
    return (
        f'<rect class="{style}" x="{left:.1f}" y="{top:.1f}" width="{NODE_WIDTH:g}" height="{NODE_HEIGHT:g}" rx="5"/>'
    )


def _stripe(shown: Collapsed, number: int, left: float, top: float) -> str:
    """The coloured stripe: the letter of the phase, or the number of the part when the graph is cut."""
    part = int(shown.parts[number])
    colour = colours.of_number(part) if part >= 0 else PHASE_COLOUR[shown.phases[number]]
    letter = str(part) if part >= 0 else PHASE_LETTER[shown.phases[number]]
    right, bottom = left + STRIPE, top + NODE_HEIGHT
    outline = f"M{right:.1f} {top:.1f}H{left + 5:.1f}a5 5 0 0 0-5 5V{bottom - 5:.1f}a5 5 0 0 0 5 5H{right:.1f}z"
    return (
        f'<path class="mark" d="{outline}" fill="{colour}"/>'
        f'<text x="{left + STRIPE / 2:.1f}" y="{top + NODE_HEIGHT / 2 + 4:.1f}" font-size="11" '
        f'font-weight="700" text-anchor="middle" style="fill:{colours.ink_on(colour)}">{letter}</text>'
    )


def _words(shown: Collapsed, number: int, left: float, top: float) -> str:
    badge = f"×{shown.repeats[number]}" if shown.repeats[number] > 1 else ""
    room = NODE_WIDTH - STRIPE - 11
    label_room = room - (text_width(badge, _LABEL, weight=700) + 3 if badge else 0)
    label = safe(fitted(shown.labels[number], label_room, _LABEL, weight=600))
    halo = " halo" if shown.collectives[number] else ""
    start = left + STRIPE + 6
    drawn = (
        f'<text class="{halo}" x="{start:.1f}" y="{top + 15:.1f}" font-size="{_LABEL}" font-weight="600">'
        f'{label}</text><text class="soft{halo}" x="{start:.1f}" y="{top + 28.5:.1f}" '
        f'font-size="{_SMALL}">{safe(_detail(shown, number, room))}</text>'
    )
    if badge:
        drawn += (
            f'<text class="{halo}" x="{left + NODE_WIDTH - 5:.1f}" y="{top + 15:.1f}" font-size="{_LABEL}" '
            f'font-weight="700" text-anchor="end">{badge}</text>'
        )
    return drawn


def _detail(shown: Collapsed, number: int, room: float) -> str:
    """The second line: how much, and where in the model or how many operators."""
    label, path = shown.labels[number], shown.modules[number]
    count = int(shown.node_counts[number])
    size = bytes_text(int(shown.bytes_out[number]))
    if shown.flops[number] and shown.kinds[number] is Kind.COMPUTE:
        size = flops_text(float(shown.flops[number]))
    if label == path or not path:
        return fitted(f"{size} · {count} op{'s' if count > 1 else ''}", room, _SMALL)
    return f"{size} · {fitted(path, room - text_width(size + ' · ', _SMALL), _SMALL)}"


def tooltip(shown: Collapsed, number: int) -> str:
    """All that is known of a node, a fact a line, the user's own source line last."""
    graph, row = shown.graph, int(shown.rows[number])
    where = [shown.modules[number] or "no module known", str(shown.phases[number])]
    if shown.parts[number] >= 0:
        where.append(f"part {shown.parts[number]}")
    lines = [shown.labels[number], " · ".join(where)]
    count, repeats = int(shown.node_counts[number]), int(shown.repeats[number])
    if count > 1 or repeats > 1:
        times = f", {repeats} identical blocks folded" if repeats > 1 else ""
        lines.append(f"{count} operators{times}; the dearest:")
    lines.append(" ".join(filter(None, [operation(graph.targets[row]), graph.shapes[row], graph.names[row]])))
    lines.append(f"value {bytes_text(int(graph.bytes_out[row]))}, moves {bytes_text(int(graph.bytes_moved[row]))}")
    if shown.flops[number]:
        lines.append(f"{flops_text(float(shown.flops[number]))} in all")
    if shown.collectives[number]:
        starts = int(shown.collectives[number])
        group = f", group {graph.groups[row]}" if graph.groups[row] else ""
        lines.append(f"starts {starts} collective{'s' if starts > 1 else ''}{group}")
    if shown.parameter_bytes[number]:
        lines.append(f"first to read {bytes_text(int(shown.parameter_bytes[number]))} of parameters and state")
    if graph.sources[row]:
        lines.append(source_text(graph.sources[row]))
    return "\n".join(lines)
