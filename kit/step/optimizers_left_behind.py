"""Find an optimizer that still holds the parameters a model had before it was sharded.

It would take its steps on tensors that nothing reads: training would stand still without a word.
"""

import gc
import weakref
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from kit.step.strategy import StrategyError


@dataclass(slots=True)
class LeftBehind:
    """The trainable parameters a model had at one moment, without keeping them alive."""

    parameters: "list[weakref.ref[nn.Parameter]]"

    @classmethod
    def before(cls, model: nn.Module) -> "LeftBehind":
        """Note the parameters that the model has now."""
        return cls([weakref.ref(parameter) for parameter in model.parameters() if parameter.requires_grad])

    def refuse_optimizers(self, model: nn.Module) -> None:
        """Raise `StrategyError` when an optimizer holds parameters that the model no longer has."""
        present = {id(parameter) for parameter in model.parameters()}
        alive = {id(p) for ref in self.parameters if (p := ref()) is not None} - present
        for held in gc.get_objects() if alive else ():
            if not issubclass(type(held), Optimizer):
                continue
            count = sum(id(parameter) in alive for group in held.param_groups for parameter in group["params"])
            if count:
                raise StrategyError(
                    f"an optimizer ({type(held).__name__}) holds {count} parameters that the model had before "
                    "kit.compile sharded it; pass it with kit.compile(..., optimizer=optimizer), or make it from the "
                    "parameters() of the compiled module"
                )
        self.parameters = []  # asked once: nobody can get hold of them later
