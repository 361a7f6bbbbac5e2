"""Send many small tensors in few collectives, and start each as soon as its data exist.

After tracing there is one collective for each parameter, all gathers first and all reductions
last. Chains of one group and dtype are packed up to a size; a reduction starts right after its
last gradient, a gather right before its first use, and a wait stands before the first reader.
A bucket of one is moved and not packed, so `max_bytes=None` still starts early.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from kit._torch import collectives
from kit.step.passes.chains import Chain, add, chains_of, first_user

aten: Any = torch.ops.aten

Pack = Callable[[GraphModule, Sequence[Chain], Node], None]


def bucket_reductions(module: GraphModule, max_bytes: float | None) -> None:
    """Pack all-reduces, and reduce-scatters, in the order in which their gradients are ready.

    Scalars (the loss) keep their own small collective.
    """
    for target, pack in (
        (collectives.ALL_REDUCE, _pack_all_reduce),
        (collectives.REDUCE_SCATTER, _pack_reduce_scatter),
    ):
        chains = [chain for chain in chains_of(module, target) if chain.wait.users and not _is_of_the_loss(chain)]
        chains.sort(key=lambda chain: chain.source)
        for bucket in _buckets(chains, max_bytes, _is_ready_before_read):
            pack(module, bucket, max(chain.source for chain in bucket))


def bucket_gathers(module: GraphModule, max_bytes: float | None) -> None:
    """Pack all-gathers in the order of first use; each starts right before it is first read."""
    chains = [chain for chain in chains_of(module, collectives.ALL_GATHER) if chain.wait.users]
    chains.sort(key=lambda chain: first_user([chain.wait]))
    for bucket in _buckets(chains, max_bytes, lambda members: True):
        reader = first_user([chain.wait for chain in bucket])
        for chain in bucket:
            if chain.source.op != "placeholder" and chain.source > reader:
                reader.prepend(chain.source)  # a cast of the parameter, which every place can make
        _pack_all_gather(module, bucket, reader)


def _is_of_the_loss(chain: Chain) -> bool:
    return bool(chain.start.meta.get("custom", {}).get("kit_module") == "loss")


def _is_ready_before_read(members: Sequence[Chain]) -> bool:
    """Whether the last of the members' data exists before the first of their results is read."""
    return max(chain.source for chain in members) < first_user([chain.wait for chain in members])


def _buckets(
    chains: Sequence[Chain], max_bytes: float | None, fit: Callable[[Sequence[Chain]], bool]
) -> list[list[Chain]]:
    """Neighbouring chains of one key that `fit` together, each bucket up to `max_bytes` (a larger tensor is alone)."""
    open_buckets: dict[tuple[str, str], list[Chain]] = {}
    buckets: list[list[Chain]] = []
    for chain in chains:
        bucket = open_buckets.get(chain.key)
        limit = -1.0 if max_bytes is None else max_bytes
        full = bucket is None or sum(c.bytes_sent for c in bucket) + chain.bytes_sent > limit
        if bucket is None or full or not fit([*bucket, chain]):
            bucket = []
            buckets.append(bucket)
            open_buckets[chain.key] = bucket
        bucket.append(chain)
    return buckets


def _pack_all_reduce(module: GraphModule, bucket: Sequence[Chain], ready: Node) -> None:
    graph, first = module.graph, bucket[0]
    reader = first_user([chain.wait for chain in bucket])
    with graph.inserting_after(_last(ready, graph)):
        parts = [add(graph, aten.reshape.default, chain.source, [-1], like=chain.start) for chain in reversed(bucket)]
    _start_and_wait(module, bucket, list(reversed(parts)), reader, dim=0, extra=first.start.args[1:])


def _pack_reduce_scatter(module: GraphModule, bucket: Sequence[Chain], ready: Node) -> None:
    graph, first = module.graph, bucket[0]
    world_size = int(first.start.args[2])  # type: ignore[arg-type]
    reader = first_user([chain.wait for chain in bucket])
    with graph.inserting_after(_last(ready, graph)):
        parts = [
            add(graph, aten.reshape.default, chain.source, [world_size, -1], like=chain.start)
            for chain in reversed(bucket)
        ]
    _start_and_wait(module, bucket, list(reversed(parts)), reader, dim=1, extra=first.start.args[1:])


def _start_and_wait(
    module: GraphModule,
    bucket: Sequence[Chain],
    parts: list[Node],
    reader: Node,
    *,
    dim: int,
    extra: Sequence[Any],
) -> None:
    """Join `parts`, reduce them in one collective, and hand each chain's readers its slice."""
    graph, first = module.graph, bucket[0]
    target = first.start.target
    with graph.inserting_after(parts[-1]):
        if len(parts) == 1:
            start = add(graph, target, first.source, *extra, like=first.start)
        else:
            start, flat = None, add(graph, aten.cat.default, parts, dim, like=first.start)
    if start is None:
        with graph.inserting_after(flat):
            flat_view = add(graph, aten.reshape.default, flat, [-1], like=first.start)
        with graph.inserting_after(flat_view):
            start = add(graph, target, flat_view, *extra, like=first.start)
    with graph.inserting_before(reader):
        result = add(graph, collectives.WAIT, start, like=first.start)
        begin = 0
        for chain in bucket:
            shape = list(chain.wait.meta["val"].shape)
            end = begin + math.prod(shape)
            whole = len(bucket) == 1
            piece = result if whole else add(graph, aten.slice.Tensor, result, 0, begin, end, like=chain.wait)
            out = piece if whole else add(graph, aten.reshape.default, piece, shape, like=chain.wait)
            chain.wait.replace_all_uses_with(out)
            begin = end
    _erase(module, bucket)


def _pack_all_gather(module: GraphModule, bucket: Sequence[Chain], reader: Node) -> None:
    graph, first = module.graph, bucket[0]
    world_size = int(first.start.args[1])  # type: ignore[arg-type]
    with graph.inserting_before(reader):
        if len(bucket) == 1:
            start = add(graph, collectives.ALL_GATHER, first.source, *first.start.args[1:], like=first.start)
            out = add(graph, collectives.WAIT, start, like=first.start)
            first.wait.replace_all_uses_with(out)
        else:
            parts = [add(graph, aten.reshape.default, chain.source, [-1], like=chain.start) for chain in bucket]
            flat = add(graph, aten.cat.default, parts, 0, like=first.start)
            start = add(graph, collectives.ALL_GATHER, flat, *first.start.args[1:], like=first.start)
            wait = add(graph, collectives.WAIT, start, like=first.start)
            rows = add(graph, aten.reshape.default, wait, [world_size, -1], like=first.start)
            begin = 0
            for chain in bucket:
                end = begin + chain.value.numel()
                piece = add(graph, aten.slice.Tensor, rows, 1, begin, end, like=chain.wait)
                shape = list(chain.wait.meta["val"].shape)
                chain.wait.replace_all_uses_with(add(graph, aten.reshape.default, piece, shape, like=chain.wait))
                begin = end
    _erase(module, bucket)


def _last(node: Node, graph: torch.fx.Graph) -> Node:
    """`node`, or the last input when it is one: nothing may stand between the inputs of a graph."""
    if node.op != "placeholder":
        return node
    last: Node = [n for n in graph.nodes if n.op == "placeholder"][-1]
    return last


def _erase(module: GraphModule, bucket: Sequence[Chain]) -> None:
    for chain in bucket:
        module.graph.erase_node(chain.wait)
        module.graph.erase_node(chain.start)
