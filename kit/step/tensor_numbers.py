"""Let code that was written for numbers run on tensors: `alpha=`, `value=`, `.grad` and `.data`.

An optimizer's own step takes the learning rate as a number and reads `.grad`. In a graph the rate is an
input, and the gradients are values of the graph that no parameter holds.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_PRODUCTS = {"addcmul": torch.mul, "addcmul_": torch.mul, "addcdiv": torch.div, "addcdiv_": torch.div}


class TensorNumbers(TorchFunctionMode):
    """In the block a tensor may stand where torch wants a number, and `parameter.grad` is the gradient given here."""

    def __init__(self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._gradients = {id(p): g for p, g in zip(parameters, gradients, strict=True)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One call of torch, with tensors multiplied in where it takes numbers only."""
        options = dict(kwargs or {})
        of, name = getattr(func, "__self__", None), getattr(func, "__name__", "")
        if of is torch.Tensor.grad and name == "__get__" and id(args[0]) in self._gradients:
            return self._gradients[id(args[0])]
        if of is torch.Tensor.data:  # what it gives is no value of a graph
            return args[0].detach() if name == "__get__" else args[0].copy_(args[1])
        if isinstance(options.get("alpha"), torch.Tensor):
            scale = options.pop("alpha")
            return func(args[0], _like(args[1], args[0]) * scale, **options)
        if name in _PRODUCTS and isinstance(options.get("value"), torch.Tensor):
            target, left, right = args
            product: Any = _PRODUCTS[name]
            change = product(_like(left, target), _like(right, target)) * options["value"]
            return target.add_(change) if name.endswith("_") else target + change
        return func(*args, **options)


def _like(value: Any, target: torch.Tensor) -> Any:
    """In the format that the sum is made in, so that the product is not rounded to a shorter one before."""
    return value.to(torch.result_type(value, target)) if isinstance(value, torch.Tensor) else value
