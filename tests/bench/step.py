"""A training step: the kit's one graph beside eager DDP, FSDP2 and their compiled forms. `make bench NAME=step`.

`STEP_SIZE=163m|1b|tiny` chooses the model, one command each: with GPUs "163m" is the default, on a CPU "tiny".
`STEP_SKIP=NAME,NAME` leaves variants out, `STEP_SECONDS` bounds the whole (what comes last is left out first). All
variants in the same run, in turn, three rounds; medians of the rounds. Peak memory is what a variant adds to what was
allocated before it was built. The floor is the union of the compute kernels of our fastest step, from its profile.
"""

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from _figures import Figure, conditions, finish

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
import _step_variants as way
import small_models

import kit

ROUNDS, STEPS, WARM_UP = 3, 12, 8


def measure(size: way.Size, gpt: type[torch.nn.Module], spent: float, skip: list[str]) -> dict[str, Any]:
    """On a rank: build, run and time every variant. Rank 0's seconds count; ranks are synchronised before a block."""
    from kit.ranks import rank_device

    device = torch.device(rank_device())
    bench = way.Bench(size, device, gpt)
    found: dict[str, Any] = {"threads": torch.get_num_threads(), "variants": {}}
    running = {}
    for name, build in way.variants(bench, gpu=device.type == "cuda").items():
        if name in skip:
            continue
        running[name], found["variants"][name] = prepare(name, build, device)
    for _ in range(ROUNDS):
        for name, (run, _) in running.items():
            found["variants"][name]["ms"].append(block(run, device))
            if torch.distributed.get_rank() == 0:
                print(f"{name}: {found['variants'][name]['ms'][-1]:.2f} ms", flush=True)
    for name, (run, _) in running.items():
        found["variants"][name]["last_loss"] = run().item()
    ours = [name for name in running if name.startswith("kit")]
    found["best"] = min(ours, key=lambda name: statistics.median(found["variants"][name]["ms"]), default="")
    for name in ours:
        found["variants"][name]["profile"] = profiled(name, running[name][0], device)
    running.clear()
    for name, build in way.extras(bench).items():
        gc.collect()
        if over_time(spent, device):
            break
        (run, _), found["variants"][name] = prepare(name, build, device)
        found["variants"][name]["ms"] = [block(run, device) for _ in range(ROUNDS)]
        del run
    return found


def over_time(until: float, device: torch.device) -> bool:
    """Whether the time is up on any rank."""
    late = torch.tensor(float(time.time() > until), device=device)
    torch.distributed.all_reduce(late)
    return late.item() > 0


def prepare(name: str, build: Callable[[], Any], device: torch.device) -> tuple[tuple[way.Step, Any], dict[str, Any]]:
    """Build a variant and run its warm-up: seconds of the first step, peak memory, losses."""
    before = allocated(device)
    begun = time.perf_counter()
    built = build()
    run, step = built if isinstance(built, tuple) else (built, None)
    seconds_to_build = time.perf_counter() - begun
    losses, seconds = [], []
    for _ in range(WARM_UP):
        begun = time.perf_counter()
        losses.append(run().item())
        seconds.append(time.perf_counter() - begun)
    row = {
        "build_s": seconds_to_build, "first_s": seconds[0], "peak_gib": (peak(device) - before) / 2**30,
        "losses": losses, "ms": [],
    }  # fmt: skip
    if torch.distributed.get_rank() == 0:
        print(
            f"{name}: built {seconds_to_build:.1f} s, first step {seconds[0]:.1f} s, loss {losses[-1]:.4f}", flush=True
        )
    return (run, step), row


def block(run: way.Step, device: torch.device) -> float:
    """Milliseconds a step over a block of steps."""
    run()
    settle(device)
    torch.distributed.barrier()
    begun = time.perf_counter()
    for _ in range(STEPS):
        run()
    settle(device)
    return (time.perf_counter() - begun) / STEPS * 1e3


def profiled(name: str, run: way.Step, device: torch.device) -> list[dict[str, float]]:
    """Milliseconds of compute, exposed communication and window of each step of a profile of this rank.

    Where there is a folder `$OUT` the timelines are kept in it.
    """
    from kit.timeline.measure import breakdown_by_step
    from kit.timeline.profile import profile_rank

    timeline = profile_rank(lambda batch: run(), [None] * 5, warmup=2, active=3, device=str(device))
    if out := os.environ.get("OUT"):
        kit.save(timeline, Path(out) / f"{name.replace(' ', '_')}_rank{torch.distributed.get_rank()}.kit")
    return [
        {
            "compute": row.compute_ns / 1e6, "exposed": row.exposed_communication_ns / 1e6,
            "communication": row.communication_ns / 1e6, "window": row.window_ns / 1e6,
        }
        for row in breakdown_by_step(timeline)
    ]  # fmt: skip


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def allocated(device: torch.device) -> int:
    """Bytes of live tensors; the peak starts again here. 0 on a CPU, where nobody counts."""
    if device.type != "cuda":
        return 0
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def ms_of(found: dict[str, Any], name: str) -> float:
    return statistics.median(found["variants"][name]["ms"])


def figures(found: list[dict[str, Any]], size: str) -> dict[str, Figure]:
    """Rank 0's times beside the peers; the bars are those of issue 4 for this size."""
    first = found[0]
    have = first["variants"]
    beside = {"kit ddp": "eager DDP", "kit fsdp": "FSDP2", "kit fsdp no reshard": "FSDP2 no reshard"}
    bars = {"163m": {"kit fsdp": 1.9, "kit fsdp no reshard": 1.8}, "1b": {"kit fsdp": 1.5, "kit fsdp no reshard": 1.4}}
    result = {}
    for name, row in have.items():
        value, peer = ms_of(first, name), beside.get(name, "eager DDP")
        if peer not in have:  # left out by STEP_SKIP: our own figures stand alone, no bar can be judged
            result[f"{name}: step"] = Figure(value=value, unit="ms")
            if row["peak_gib"]:
                result[f"{name}: peak"] = Figure(value=row["peak_gib"], unit="GiB")
            continue
        bar = bars.get(size, {}).get(name)
        ratio = ms_of(first, peer) / value
        result[f"{name}: step"] = Figure(
            value=value, unit="ms", peer=peer, peer_value=ms_of(first, peer), ratio=ratio,
            bar=f"at least {bar}x faster" if bar else "", holds=ratio >= bar if bar else None,
        )  # fmt: skip
        if row["peak_gib"]:
            other = have[peer]["peak_gib"]
            bounded = name == "kit fsdp"
            result[f"{name}: peak"] = Figure(
                value=row["peak_gib"], unit="GiB", peer=peer, peer_value=other, ratio=other / row["peak_gib"],
                bar="no more memory than FSDP2" if bounded else "", holds=row["peak_gib"] <= other if bounded else None,
            )  # fmt: skip
    if first["device"] == "cuda" and first["best"]:
        result.update(of_profiles(found, size))
    return result


def of_profiles(found: list[dict[str, Any]], size: str) -> dict[str, Figure]:
    """Distance to the floor, and communication that nothing hides on the rank that waits least for the other."""
    best = found[0]["best"]
    floor = min(step["compute"] for rank in found for step in rank["variants"][best]["profile"])
    limit = {"163m": 1.1, "1b": 1.15}.get(size)
    over = ms_of(found[0], best) / floor
    result = {
        "best step over compute floor": Figure(
            value=over, unit=f"x of {floor:.2f} ms ({best})", bar=f"at most {limit}x" if limit else "",
            holds=over <= limit if limit else None,
        )
    }  # fmt: skip
    for name in (name for name in found[0]["variants"] if "profile" in found[0]["variants"][name]):
        steps = zip(*(rank["variants"][name]["profile"] for rank in found), strict=True)
        shares = [min(step["exposed"] for step in ranks) / ms_of(found[0], name) for ranks in steps]
        share = statistics.median(shares)
        result[f"{name}: exposed"] = Figure(
            value=share, unit="of a step", bar="at most 0.03", holds=share <= 0.03
        )  # fmt: skip
    return result


def main() -> None:
    gpus = torch.cuda.device_count()
    size = os.environ.get("STEP_SIZE", "163m" if gpus else "tiny")
    chosen = way.SIZES[size]
    place: dict[str, Any] = {"backend": "nccl", "device": "cuda"} if gpus else {}
    skip = os.environ.get("STEP_SKIP", "").split(",")
    limit = float(os.environ.get("STEP_SECONDS", "480"))
    for module in (small_models, way):
        cloudpickle.register_pickle_by_value(module)
    with kit.launch(min(2, gpus) or 2, **place) as ranks:
        found = ranks.run(partial(measure, chosen, small_models.GPT, time.time() + limit * 0.75, skip), timeout=limit)
    kind = "cuda" if place else "cpu"
    found = [{**rank, "device": kind} for rank in found]
    more = {
        "size": size, "model": str(chosen), "device": torch.cuda.get_device_name(0) if place else "CPU",
        "world_size": len(found), "threads": found[0]["threads"], "rounds": ROUNDS, "steps": STEPS, "ranks": found,
    }  # fmt: skip
    finish("step", conditions(["torch"], **more), figures(found, size))


if __name__ == "__main__":
    main()
