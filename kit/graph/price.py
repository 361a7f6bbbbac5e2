"""Price a node: floating point operations, bytes moved, modelled seconds.

FLOPs come from torch's own table of formulas, looked up for each operator; a composite operator
(`linear`, `scaled_dot_product_attention`) is run once on fake tensors under torch's counter, which
opens it up. Nodes of equal operator and shapes are priced once. Nothing here runs on real data.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from kit._torch.fake import hint_of, running_fake, storage_identity
from kit._torch.schema import is_composite, is_higher_order, is_operator, namespace_and_name, packet_of

# Operators that read as many bytes of their first argument as they return, not the whole table.
_LOOKUPS = frozenset({"embedding", "index", "index_select", "gather", "_unsafe_index", "take"})


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the value: elements times element size (an expanded tensor counts each element)."""
    elements = 1
    for size in tensor.shape:
        elements *= hint_of(size)
    return elements * tensor.element_size()


def tensors_in(value: object) -> list[torch.Tensor]:
    """All tensors in nested tuples, lists and dicts, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in tensors_in(item)]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def bytes_moved(target: object, arguments: object, output: object, *, written: list[torch.Tensor]) -> int:
    """Bytes a node reads and writes: its inputs once each, its output, and what it changes in place.

    A lookup (`embedding`, `index`) reads as much of its table as it returns, otherwise one lookup
    would outweigh the model. `written`: the arguments that the node changes. Views are the caller's
    business: they move nothing. `zeros_like` and its kin read only a shape.
    """
    name = namespace_and_name(target)[1]
    read = [] if name.endswith("_like") or name.startswith("new_") else tensors_in(arguments)
    inputs = {storage_identity(tensor): tensor for tensor in reversed(read)}
    outputs = {storage_identity(tensor): tensor for tensor in [*written, *tensors_in(output)]}
    bytes_written = sum(map(tensor_bytes, outputs.values()))
    if name in _LOOKUPS:
        inputs.pop(storage_identity(read[0]))
        return 2 * bytes_written + sum(map(tensor_bytes, inputs.values()))
    return bytes_written + sum(map(tensor_bytes, inputs.values()))


class FlopPrices:
    """Counts FLOPs of nodes, remembering each operator and shape it has counted."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._known: dict[object, float] = {}

    def flops(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> float:
        """Floating point operations of one node; a multiply and an add are two.

        0 for what has no formula (elementwise work is priced by its bytes).
        """
        key = (target, _signature(args), _signature(kwargs))
        if key not in self._known:
            self._known[key] = self._count(target, args, kwargs, output)
        return self._known[key]

    def _count(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> float:
        attention = _CPU_ATTENTION.get(namespace_and_name(target)[1])
        if attention is not None:
            return float(attention(*map(_shape, args), **kwargs))
        formula = flop_registry.get(packet_of(target))
        if formula is not None:
            return float(formula(*args, **kwargs, out_val=output))
        if is_higher_order(target) or (is_operator(target) and not is_composite(target)):
            return 0.0
        with running_fake(self._mode), torch.no_grad(), _quiet_counter() as counter:
            target(*args, **kwargs)
        return float(counter.get_total_flops())


def _quiet_counter() -> FlopCounterMode:
    formulas = {getattr(torch.ops.aten, name): formula for name, formula in _CPU_ATTENTION.items()}
    return FlopCounterMode(display=False, custom_mapping=formulas)


def _shape(value: Any) -> Any:
    return tuple(map(hint_of, value.shape)) if isinstance(value, torch.Tensor) else value


def _attention_forward(query: Any, key: Any, value: Any, *_: object, **__: object) -> int:
    """Two matrix products, query x key and scores x value: 2 b h q k (d + d_v)."""
    batch, heads, rows, width = query
    return int(2 * batch * heads * rows * key[2] * (width + value[3]))


def _attention_backward(_: object, query: Any, key: Any, value: Any, *__: object, **___: object) -> int:
    """Five products: the scores again, then the gradients of scores, value, query and key.

    The same count as torch's `sdpa_backward_flop_count` gives for the kernels it knows.
    """
    batch, heads, rows, width = query
    return int(2 * batch * heads * rows * key[2] * (3 * width + 2 * value[3]))


# torch's table (2.11 to 2.13) lacks the attention kernel that CPUs use. Formulas take shapes.
_CPU_ATTENTION: dict[str, Callable[..., int]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention_forward,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}


def _signature(value: object) -> object:
    """What the price of a node depends on, as something that can be compared."""
    if isinstance(value, torch.Tensor):
        return (
            tuple(hint_of(size) for size in value.shape),
            str(value.dtype),
            tuple(map(hint_of, value.stride())),
        )
    if isinstance(value, dict):
        return tuple((name, _signature(item)) for name, item in sorted(value.items()))
    if isinstance(value, (tuple, list)):
        return tuple(_signature(item) for item in value)
    return repr(value)
