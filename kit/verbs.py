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
from kit.step.compatible import compatibility_of
from kit.step.compiled import CompiledStep
from kit.step.forms import representations as _representations
from kit.step.hardware import Hardware
from kit.step.record import Measured, Plan
from kit.step.start_record import Representations, StartUp
from kit.step.startup_times import startup as _startup
from kit.step.static_module import DistributedGraphModule, compile_module
from kit.step.strategy import Strategy
from kit.step.trace import Loss
from kit.step.verdict import explain_model
from kit.step.verdict_record import Compatibility, Verdict
from kit.step_on_ranks import StepOnRanks
from kit.timeline.changes import compare_timelines
from kit.timeline.merge import merge
from kit.timeline.profile import profile_rank
from kit.timeline.record import Timeline
from kit.timeline.step_times import step_times
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


def compile(  # noqa: A001
    model: Any, batch: Any = None, *, strategy: str | Strategy = "ddp", **options: Any
) -> DistributedGraphModule | Remote:
    """The model as static forward and backward graphs with their collectives inside, used like the model.

    `strategy`: as for `compile_step`, `kit.TP(...)` too. Parameters and gradients that it keeps in parts are DTensors.
    `batch`: an example to trace now (a tensor, a tuple or dict of arguments), None traces at the first call. See
    `kit.step.static_module.compile_module` for the options: `mesh`, `optimizer`, `precision`, `checkpointing`,
    `executor`, `variants`. From the notebook it is made on all ranks; the reference that comes back is for
    `ranks.run`.
    """
    if in_rank():
        return _compile_module(model, batch, {"strategy": strategy, **options})
    group = _group("compile", model, batch)
    return group.hold(_compile_module, model, batch, {"strategy": strategy, **options})


def explain(model: Any, batch: Any, loss: Loss | None = None) -> Verdict:
    """Whether a model trains as one static graph, counted in real runs, and in words why or why not.

    Takes a plain module, DDP, FSDP2 (`fully_shard`), either under torch.compile (whole or by parts), the module of
    `kit.compile` and the step of `kit.compile_step`. A module that is not compiled is judged under torch.compile.
    `batch`: a tensor, a tuple or a dict of arguments; with `loss(model, batch)`, what the loss takes. Three
    forward and backward runs; gradients and buffers are put back, compiled code in memory is dropped (what was
    compiled compiles again). All ranks call this together; from the notebook, references are sent to all and
    rank 0's verdict comes back.
    """
    model = model.remote if isinstance(model, StepOnRanks) else model
    if isinstance(model, Remote) or isinstance(batch, Remote):
        group = _group("explain", model, batch)
        return group.run(explain_model, model, batch, loss, _call_with)[0]  # type: ignore[no-any-return]
    return explain_model(model, batch, loss, _call_with)


def compatibility(make_model: Any, batch: Any, loss: Loss | None = None, *, blocks: str | None = None) -> Compatibility:
    """DDP, FSDP2 and the kit's DDP and FSDP against eager, whole-model and per-block compile, each cell from a run.

    `make_model()` gives a fresh model for each cell; `batch` and `loss` as in `kit.explain`. `blocks`: a pattern
    of module paths to shard and compile one by one, None takes the parts of the longest `ModuleList`.
    About two seconds a cell for a small model.
    """
    if in_rank():
        return compatibility_of(make_model, batch, loss, _call_with, blocks=blocks)
    group = _group("compatibility", make_model, batch)
    return group.run(_compatibility, make_model, batch, loss, blocks)[0]  # type: ignore[no-any-return]


def profile(step: Any, batches: Any, *, warmup: int = 1, active: int = 3, memory: bool = False) -> Timeline:
    """Profile `active` steps on every rank after `warmup` more; one Timeline of all ranks.

    `step` is called with one item of `batches` (on each rank its own; a list is a window of
    micro-batches). In a rank, every rank calls this and each gets the whole Timeline. From the
    notebook, `step` and `batches` are references such as `ranks["step"]`, or a function and data
    that are sent. `memory=True` also records every change of the allocators, with Python frames;
    `kit.measure(timeline, "memory")` tells each rank's peak with operator, module and line.
    """
    if in_rank():
        import torch.distributed as dist

        mine = _profile(step, batches, warmup, active, memory)
        parts: list[Timeline | None] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, mine)
        return merge([part for part in parts if part is not None])
    step = step.remote if isinstance(step, StepOnRanks) else step
    group = _group("profile", step, batches)
    return merge(group.run(_profile, step, batches, warmup, active, memory))


def plan_on(step: Any, hardware: str | Hardware = "h200", *, timeline: Timeline | None = None) -> Plan:
    """The plan of a compiled step with its estimated times: `table` and picture show both lanes.

    `hardware`: a profile's name or a `kit.Hardware` of your own figures. `timeline`: a profile of this very step
    (`kit.profile`); then its times of compute and of each collective stand in for modelled ones, and `hardware`
    only shares compute out among the nodes. From the notebook, `step` is a reference such as `ranks["step"]`.
    Raises `MeasuredTimesError` when the timeline is of another step.
    """
    measured = None if timeline is None else _measured_times(timeline)
    if in_rank():
        return _plan_on(step, hardware, measured)
    step = step.remote if isinstance(step, StepOnRanks) else step
    return _group("plan_on", step).run(_plan_on, step, hardware, measured)[0]  # type: ignore[no-any-return]


def _plan_on(step: CompiledStep, hardware: str | Hardware, measured: Measured | None) -> Plan:
    return step.plan_on(hardware, measured)


def _measured_times(timeline: Timeline) -> Measured:
    times = step_times(timeline)
    kind = "CPU threads" if timeline.cpu_only else "device kernels"
    return Measured(
        source=f"measured: median of {times.steps} profiled steps on {len(timeline.ranks)} ranks, {kind}",
        collectives=times.collectives,
        compute_seconds=times.compute_seconds,
    )


def startup(make_model: Any, loss: Any, batch: Any, *, strategy: str | Strategy = "ddp", **options: Any) -> StartUp:
    """What eager, lazy torch.compile and the whole step cost on this machine: build, memory, first and steady step.

    See `kit.step.startup_times.startup` for `make_optimizer`, `modes`, `steps` and options of `compile_step`. From the
    notebook pass references (`ranks["make_model"]`); every rank measures and the slowest counts.
    """
    if in_rank():
        return _startup(make_model, loss, batch, strategy=strategy, **options)
    group = _group("startup", make_model, loss, batch, *options.values())
    return group.run(_start_up, make_model, loss, batch, {"strategy": strategy, **options})[0]  # type: ignore[no-any-return]


def _start_up(make_model: Any, loss: Any, batch: Any, options: dict[str, Any]) -> StartUp:
    return _startup(make_model, loss, batch, **options)


def representations(model: Any, loss: Any, batch: Any, *, step: Any = None) -> Representations:
    """Nodes and bytes of a plain model as TorchScript trace, symbolic FX, Dynamo's and AOTAutograd's joint graph.

    With `step`, a compiled step of the same model, also its whole-step graph as traced and after each pass.
    Arguments may be references (`ranks["model"]`); then rank 0's counts come back.
    """
    step = step.remote if isinstance(step, StepOnRanks) else step
    if any(isinstance(value, Remote) for value in (model, loss, batch, step)):
        group = _group("representations", model, loss, batch, step)
        return group.run(_forms, model, loss, batch, step)[0]  # type: ignore[no-any-return]
    return _forms(model, loss, batch, step)


def _forms(model: Any, loss: Any, batch: Any, step: CompiledStep | None) -> Representations:
    return _representations(model, loss, batch, stages=() if step is None else step.stages)


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

    Two graphs are compared by what they hold (nodes, collectives, bytes), two timelines by what a step of them does
    (time, kernels, launches, by phase and operator), any other two field by field.
    """
    if isinstance(left, Graph) and isinstance(right, Graph):
        rows = tuple(_change(row) for row in changes(left, right) if row.before != row.after)
        return Comparison(kind="Graph", rows=rows)
    if isinstance(left, Timeline) and isinstance(right, Timeline):
        found = compare_timelines(left, right)
        rows = tuple(Difference(field=field, left=before, right=after) for field, before, after in found)
        return Comparison(kind="Timeline", rows=rows)
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


def _compile_module(model: Any, batch: Any, options: dict[str, Any]) -> DistributedGraphModule:
    return compile_module(model, None if batch is None else call_arguments(batch), **options)


def _call_with(model: Any, batch: Any) -> Any:
    args, kwargs = call_arguments(batch)
    return model(*args, **kwargs)


def _compatibility(make_model: Any, batch: Any, loss: Loss | None, blocks: str | None) -> Compatibility:
    return compatibility_of(make_model, batch, loss, _call_with, blocks=blocks)


def _profile(step: Any, batches: Any, warmup: int, active: int, memory: bool) -> Timeline:
    def call(batch: Any) -> object:  # a list is a window of micro-batches, as in StepOnRanks
        return step(*batch) if isinstance(batch, list) else step(batch)

    return profile_rank(call, batches, warmup=warmup, active=active, device=rank_device(), memory=memory)


def _measure(setting: Setting, build: Build, steps: int) -> Measurement:
    return measure_setting(setting, build, steps=steps)
