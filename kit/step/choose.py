"""Rewrite a traced step in several ways, time each on this machine and keep the fastest.

Estimates order variants badly (torch's own overlap pass made a step slower on two H200s, measured), so
`passes="measure"` trusts the clock: all ranks run each variant on the real batch, what they train is put
back, and the variant whose slowest rank is fastest is kept by all; within 2 % the strategy's own passes are.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from kit import progress
from kit.graph.liveness import peak_bytes
from kit.graph.record import Kind
from kit.step.agreement import named_by_any, require_same_graph
from kit.step.lower import Draft, Lowered
from kit.step.passes.choice import Choice, changes_of
from kit.step.passes.record import Trial, Trials
from kit.step.strategy import Strategy
from kit.step.timing import WARM_UP, slowest_seconds

MakeRun = Callable[[Lowered], Callable[..., Any]]
MEASURE, DEFAULT = "measure", "default"
BUCKETS_MB = (5.0, 100.0)
NOISE = 1.02  # a variant must be faster by this factor than one that stands before it in the list

# Passes that only move or leave out work: a step is the same without them, and may be faster.
_OPTIONAL = ("prune", "hoist preparations", "start gathers early")


def choice_of(passes: str | Sequence[str], strategy: Strategy, *, check_values: bool | None) -> Choice:
    """The choice that the `passes` option of `compile_step` means. Raises `PassNameError`, `TypeError`."""
    own = Choice(bucket_mb=strategy.bucket_mb, check_values=check_values)
    if passes in (DEFAULT, MEASURE):
        return own
    names = (passes,) if isinstance(passes, str) else tuple(passes)
    chosen = replace(own, name="chosen", passes=names)
    changes_of(strategy, chosen, ranks=1)  # raises when a name is not known
    return chosen


def lowered_alike(draft: Draft, choice: Choice) -> Lowered:
    """The step after the passes of `choice`, the same graph on every rank. A collective call.

    A pass that fails its proof on one rank is left out by all. Raises `DisagreementError`.
    """
    lowered = draft.lowered(choice)
    failed = {stage.name for stage in lowered.stages if stage.failure}
    anywhere = named_by_any(failed, draft.axes)
    if anywhere != failed:
        lowered = draft.lowered(replace(choice, refused=tuple(sorted(anywhere - failed))))
    require_same_graph(lowered.module, draft.axes)
    return lowered


def variants_of(strategy: Strategy, own: Choice) -> list[Choice]:
    """What is tried: the strategy's passes, other bucket sizes, and each pass that may be left out."""
    names = tuple(change.name for change in changes_of(strategy, own, ranks=1)[:-1])  # the last one always comes
    sizes = [size for size in BUCKETS_MB if size != own.bucket_mb]
    buckets = [replace(own, name=f"buckets of {size:g} MB", bucket_mb=size) for size in sizes]
    if own.bucket_mb is not None:
        buckets.append(replace(own, name="no buckets", bucket_mb=None))
    without = [
        replace(own, name=f"without {name}", passes=tuple(other for other in names if other != name))
        for name in names
        if name in _OPTIONAL
    ]
    return [own, *buckets, *without]


def fastest(
    draft: Draft, choices: Sequence[Choice], make_run: MakeRun, *, executor: str, warm_up: int = WARM_UP
) -> tuple[Lowered, Callable[..., Any], Trials]:
    """Build and time each choice; the fastest on the slowest rank, its runner and the table. A collective call.

    Choices that give one graph are timed once.
    """
    built: dict[str, tuple[Choice, Lowered]] = {}
    same_as: dict[str, str] = {}
    with progress.task("measure passes", total=len(choices) + 1) as work:
        every = []
        for choice in choices:
            lowered = lowered_alike(draft, choice)
            key = str(lowered.module.graph)
            same_as[choice.name] = built[key][0].name if key in built else ""
            built.setdefault(key, (choice, lowered))
            every.append((choice, lowered))
            work.advance(f"{choice.name}: {len(lowered.module.graph.nodes)} nodes")
        runs = [make_run(lowered) for _, lowered in built.values()]
        seconds = slowest_seconds(runs, draft.inputs, draft.axes, window=draft.inputs.window, warm_up=warm_up)
        work.advance("timed")
    times = {choice.name: time for (choice, _), time in zip(built.values(), seconds, strict=True)}
    best = next(row for row, time in enumerate(seconds) if time <= min(seconds) * NOISE)
    kept, lowered = list(built.values())[best]
    rows = tuple(
        _trial(choice, of_choice, seconds=times[same_as[choice.name] or choice.name], same_as=same_as[choice.name])
        for choice, of_choice in every
    )
    _forget(runs)
    return lowered, runs[best], Trials(rows=rows, kept=kept.name, executor=executor)


def _trial(choice: Choice, lowered: Lowered, *, seconds: float, same_as: str) -> Trial:
    graph = lowered.stages[-1].graph
    return Trial(
        name=choice.name,
        passes=lowered.plan.passes,
        bucket_mb=choice.bucket_mb,
        nodes=len(graph),
        collectives=sum(kind is Kind.COLLECTIVE for kind in graph.kinds),
        peak_bytes=peak_bytes(graph),
        seconds=seconds,
        same_as=same_as,
    )


def _forget(runs: Sequence[Callable[..., Any]]) -> None:
    """Drop what was captured: the kept one is captured again in the step, the others are not needed."""
    for run in runs:
        forget = getattr(run, "forget", None)
        if forget is not None:
            forget()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
