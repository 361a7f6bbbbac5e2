"""How many nodes of a whole training step pruning removes, against a claim of 39 %.

The baseline is the step as traced, after plain dead code elimination and nothing else: forward, backward, collectives
and the fused (foreach) optimizer, as `kit.compile_step` makes it. No tensor is computed; four ranks are played, the
counts do not depend on how many. Run it with `make bench NAME=pruning` or `python tests/bench/pruning.py`.
"""

import sys
import time
from collections import Counter
from pathlib import Path

import torch
import torch.nn.functional as F
from _figures import Figure, conditions, finish, say

sys.path.append(str(Path(__file__).parents[1] / "models"))

from small_models import GPT, ConvNet, next_token_loss

from kit import progress
from kit._torch.fake_group import fake_world
from kit.step.lower import Lowered, draft
from kit.step.mesh import axes_of
from kit.step.passes.choice import Choice
from kit.step.recipe import recipe_of
from kit.step.strategy import DDP, FSDP, Strategy

CLAIM = 0.39
ids = torch.zeros(4, 17, dtype=torch.int64)
TOKENS = ids[:, :-1], ids[:, 1:]
IMAGES = torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.int64)


def image_loss(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Cross entropy of a classifier."""
    return F.cross_entropy(model(batch[0]), batch[1])


CASES = {
    "gpt_4_layers": (lambda: GPT(layers=4), next_token_loss, TOKENS),
    "gpt_12_layers": (lambda: GPT(layers=12), next_token_loss, TOKENS),
    "convnet": (ConvNet, image_loss, IMAGES),
}


def lowered(case: str, strategy: Strategy) -> tuple[Lowered, float]:
    """The step traced, cleared of dead code and pruned, and the seconds of CPU that pruning and its proof took."""
    make, loss, batch = CASES[case]
    with fake_world(4), progress.task("trace", total=2) as work:
        model = make()
        optimizer = torch.optim.AdamW(model.parameters())
        axes = axes_of(strategy, None, torch.device("cpu"))
        traced = draft(
            model, optimizer, loss, [batch], strategy=strategy, axes=axes, recipe=recipe_of(None, None, ()), work=work
        )
        begun = time.process_time()
        result = traced.lowered(Choice(bucket_mb=strategy.bucket_mb, passes=("prune",)))
        return result, time.process_time() - begun


def operators(module: torch.fx.GraphModule) -> Counter[str]:
    """How often each operator is called."""
    return Counter(str(node.target) for node in module.graph.nodes if node.op == "call_function")


def main() -> None:
    """Measure every model under DDP and FSDP."""
    under = conditions(["torch"], ranks_played=4, optimizer="AdamW", dead_code="removed before counting")
    figures = {}
    for case in CASES:
        for strategy in (DDP(), FSDP()):
            name = f"{case}_{type(strategy).__name__.lower()}"
            result, seconds = lowered(case, strategy)
            _, live, pruned, _ = (stage.module for stage in result.stages)
            before, after = len(live.graph.nodes), len(pruned.graph.nodes)
            gone = (operators(live) - operators(pruned)).most_common(6)
            say(f"{name}: {before} -> {after} nodes, {', '.join(f'{op} -{count}' for op, count in gone)}")
            share = 1 - after / before
            figures[f"{name}_removed"] = Figure(
                value=share, unit="of the nodes", bar=f"the claim: {CLAIM:.0%} of the nodes", holds=share >= CLAIM
            )
            figures[f"{name}_seconds"] = Figure(value=seconds, unit="CPU s, dead code and pruning with proofs")
    finish("pruning", under, figures)


if __name__ == "__main__":
    main()
