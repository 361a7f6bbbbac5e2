"""The verbs a person types; the only room, with `display`, that may know all others.

Each verb runs where it is called. In a rank (a `%%ranks` cell, a function given to `ranks.run`, a
script under torchrun) it acts on that rank. In a notebook with a live group it is sent to all
ranks and their records come back. Arguments that live on the ranks are named as `ranks["step"]`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from kit.comparison import Comparison, Difference, differences
from kit.graph.capture import call_arguments, export_module
from kit.graph.capture import capture as _capture
from kit.graph.capture_record import Capture
from kit.graph.record import Graph
from kit.graph.table import ChangeRow
from kit.graph.table import compare as changes
from kit.graph.words import bytes_text
from kit.partition.cut import cut as _cut
from kit.partition.record import Cut
from kit.partition.run import Stages
from kit.partition.run import stages as _stages
from kit.ranks import RankError, Ranks, Remote, current, in_rank, rank_device
from kit.step import compiled
from kit.step.compiled import CompiledStep
from kit.step.strategy import Strategy
from kit.step_on_ranks import StepOnRanks
from kit.timeline.merge import merge
from kit.timeline.profile import profile_rank
from kit.timeline.record import Timeline
from kit.tuning.record import Measurement, Setting, TuneReport
from kit.tuning.search import Build, measure_setting, measured, report_of, settings_for


class NoRanksError(RuntimeError):
    """A verb that needs ranks, called where there are none."""


def capture(model: Any, batch: Any) -> Capture:
    """The forward graph of a model, without any sharding, and what broke it.

    `batch`: a tensor, a tuple of positional arguments or a dict of named ones. Model and batch may
    be references (`ranks["model"]`); then rank 0 captures.
    """
    if isinstance(model, Remote) or isinstance(batch, Remote):
        group = next(value.group for value in (model, batch) if isinstance(value, Remote))
        return group.run(_capture, model, batch)[0]  # type: ignore[no-any-return]
    return _capture(model, batch)


def cut(graph: Graph | Capture, parts: int = 2, **options: Any) -> Cut:
    """The contiguous cut of a forward graph with the fewest bytes crossing, within a balance.

    See `kit.partition.cut.cut` for the options: `balance`, `eps`, measured `seconds` and more.
    """
    return _cut(graph.graph if isinstance(graph, Capture) else graph, parts, **options)


def stages(cut: Cut, model: Any, batch: Any) -> Stages:
    """The parts of a cut of `kit.capture(model, batch)` as modules that run one after the other.

    They hold the model's own parameters. Raises `CutError` when the cut is of another graph.
    """
    args, kwargs = call_arguments(batch)
    return _stages(cut, export_module(model, args, kwargs))


def compile_step(
    model: Any, optimizer: Any, loss: Any, batch: Any, *, strategy: str | Strategy = "ddp", **options: Any
) -> CompiledStep | StepOnRanks:
    """Compile a training step into one static graph with its collectives inside.

    See `kit.step.compiled.compile_step` for the arguments. From the notebook it is compiled on all
    ranks and the handle that comes back is called with a batch for each rank.
    """
    if in_rank():
        return compiled.compile_step(model, optimizer, loss, batch, strategy=strategy, **options)
    group = _group("compile_step", model, optimizer, loss, batch)
    return StepOnRanks(group.hold(_compile, model, optimizer, loss, batch, {"strategy": strategy, **options}))


def profile(step: Any, batches: Any, *, warmup: int = 1, active: int = 3) -> Timeline:
    """Profile `active` steps on every rank after `warmup` more; one Timeline of all ranks.

    `step` is called with one item of `batches` (on each rank its own; a list is a window of
    micro-batches). In a rank, every rank calls this and each gets the whole Timeline. From the
    notebook, `step` and `batches` are references such as `ranks["step"]`, or a function and data
    that are sent.
    """
    if in_rank():
        import torch.distributed as dist

        mine = _profile(step, batches, warmup, active)
        parts: list[Timeline | None] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, mine)
        return merge([part for part in parts if part is not None])
    step = step.remote if isinstance(step, StepOnRanks) else step
    group = _group("profile", step, batches)
    return merge(group.run(_profile, step, batches, warmup, active))


def tune(
    build: Build | Remote,
    *,
    global_batch: int,
    micro_batches: Sequence[int] | None = None,
    settings: Iterable[Setting] | None = None,
    steps: int = 3,
) -> TuneReport:
    """Measure micro-batch x accumulation at a fixed global batch, on the real step and ranks.

    `build(setting)` returns a compiled step and an endless iterator of windows of micro-batches.
    `micro_batches`: sizes to try, default powers of two; or give `settings` themselves. What a
    measurement trains is undone. From the notebook a setting that fails is reported and the others
    go on; in a rank the error is raised.
    """
    if in_rank():
        import torch.distributed as dist

        world_size = dist.get_world_size()
        chosen = tuple(settings or settings_for(global_batch, world_size, micro_batches=micro_batches))
        results = measured(chosen, lambda s: measure_setting(s, _local(build), steps=steps), failures=())
        return report_of(global_batch, world_size, results)
    group = _group("tune", build)
    chosen = tuple(settings or settings_for(global_batch, group.world_size, micro_batches=micro_batches))

    def measure(setting: Setting) -> Measurement:
        return group.run(_measure, setting, build, steps)[0]  # type: ignore[no-any-return]

    return report_of(global_batch, group.world_size, measured(chosen, measure, failures=(RankError,)))


def compare(left: Any, right: Any) -> Comparison:
    """What differs between two records of one kind.

    Two graphs are compared by what they hold (nodes, collectives, bytes), any other two field by field.
    """
    if isinstance(left, Graph) and isinstance(right, Graph):
        rows = tuple(_change(row) for row in changes(left, right) if row.before != row.after)
        return Comparison(kind="Graph", rows=rows)
    return Comparison(kind=type(left).__name__, rows=differences(left, right))


def _change(row: ChangeRow) -> Difference:
    show = bytes_text if "bytes" in row.what else "{:,}".format
    return Difference(field=row.what, left=show(row.before), right=show(row.after))


def _group(verb: str, *arguments: Any) -> Ranks:
    """The group that a verb called in the notebook is sent to."""
    for argument in arguments:
        if isinstance(argument, Remote):
            return argument.group
    group = current()
    if group is None:
        raise NoRanksError(
            f"kit.{verb} needs ranks and there are none here; start some with ranks = kit.launch(2), or call it in a "
            "script under torchrun after torch.distributed.init_process_group()"
        )
    return group


def _local(build: Build | Remote) -> Build:
    if isinstance(build, Remote):
        raise NoRanksError(f"{build!r} is a reference for the notebook; inside a rank pass the function itself")
    return build


def _compile(model: Any, optimizer: Any, loss: Any, batch: Any, options: dict[str, Any]) -> CompiledStep:
    return compiled.compile_step(model, optimizer, loss, batch, **options)


def _profile(step: Any, batches: Any, warmup: int, active: int) -> Timeline:
    def call(batch: Any) -> object:  # a list is a window of micro-batches, as in StepOnRanks
        return step(*batch) if isinstance(batch, list) else step(batch)

    return profile_rank(call, batches, warmup=warmup, active=active, device=rank_device())


def _measure(setting: Setting, build: Build, steps: int) -> Measurement:
    return measure_setting(setting, build, steps=steps)
