"""Say in words why the counts of a verdict are what they are."""

from dataclasses import replace

from kit.step.verdict_record import Verdict

_STATIC = {
    "step": "forward, loss, backward, reduction and update run as one graph, {inside} inside",
    "kit": "one forward and one backward graph, {inside} inside; loss and optimizer are the user's and stay outside",
    "plain": "one forward and one backward graph; the model is not distributed, so it sends nothing",
}
_OUTSIDE = {
    "ddp": "DDP reduces gradients in its reducer's hooks, not in a graph",
    "fsdp": "FSDP2 gathers parameters and reduces gradients in hooks that are hidden from Dynamo",
    "eager step": "the optimizer has no static update: its own step does not trace and runs after the graph",
}


def reasons_of(verdict: Verdict, name: str) -> Verdict:
    """The verdict with its reasons; `name`: what kind of thing it is on."""
    if verdict.is_static:
        text = _STATIC.get(name, "one forward and one backward graph, {inside} inside")
        return replace(verdict, reasons=(text.format(inside=_counted(verdict.collectives_inside, "collective")) + ".",))
    every = verdict.operators_inside + verdict.operators_outside
    if not verdict.forward_graphs:
        sends = (
            f", {_counted(verdict.collectives_outside, 'collective')} among them" if verdict.collectives_outside else ""
        )
        return replace(verdict, reasons=(f"it is not compiled: {_counted(every, 'operator')} run one by one{sends}.",))
    reasons = []
    if verdict.collectives_outside:
        why = _OUTSIDE.get(name, "something outside the graphs sends")
        sent = verdict.collectives_outside
        every_sent = sent + verdict.collectives_inside
        reasons.append(f"{why}: {sent} of {_counted(every_sent, 'collective')} started outside the graphs at run time.")
    elif name in _OUTSIDE:
        reasons.append(f"{_OUTSIDE[name]}.")
    if verdict.breaks:
        reasons.append(
            f"Dynamo had to end a graph at {_counted(len(verdict.breaks), 'place')}, first at {verdict.breaks[0]}."
        )
    pieces = (
        f"{_counted(verdict.forward_graphs, 'graph')} run in the forward and {verdict.backward_graphs} in the backward"
    )
    if verdict.forward_graphs > 1 or verdict.backward_graphs > 1:
        hidden = "" if verdict.breaks else ", although no break was counted: zero breaks do not mean one graph"
        reasons.append(f"{pieces}{hidden}.")
    if verdict.operators_outside:
        reasons.append(f"{verdict.operators_outside} of {every} operators run outside the graphs.")
    return replace(verdict, reasons=tuple(_sentence(reason) for reason in reasons))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] if not text.startswith(("it ", "the ")) else text
