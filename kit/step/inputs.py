"""The flat inputs of a step's graph, in one fixed order.

A graph takes a flat list of tensors. This record is the one place that knows the order: local
parameters, optimizer state, frozen parameters and buffers, learning rates, then the batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kit._torch import trees
from kit.step.own_update import OptimizerError
from kit.step.placement import Placement, Slot
from kit.step.state import State, state_of
from kit.step.update import EAGER, Rule, rules_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """One parameter group of the optimizer: its rule and the rows of its slots."""

    rule: Rule
    slot_rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unflattened:
    """The inputs inside the traced function, by meaning."""

    locals: list[torch.Tensor]
    states: list[dict[str, torch.Tensor]]
    others: dict[str, torch.Tensor]
    rates: list[torch.Tensor]
    window: list[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inputs:
    """Everything that a step's graph reads, apart from its batch the tensors themselves.

    `window`: the example micro-batches; their tensors are examples, other leaves are constants.
    """

    slots: tuple[Slot, ...]
    states: tuple[dict[str, torch.Tensor], ...]
    groups: tuple[Group, ...]
    others: dict[str, torch.Tensor]
    rates: tuple[torch.Tensor, ...]
    window: tuple[Any, ...]

    @property
    def eager_reason(self) -> str:
        """Why the optimizer takes its own step after the graph; "" when the update is inside."""
        return next((group.rule.why for group in self.groups if group.rule.kind == EAGER), "")

    @property
    def device(self) -> torch.device:
        """Where the step runs."""
        return self.slots[0].local.device if self.slots else torch.device("cpu")

    def held(self) -> list[torch.Tensor]:
        """The tensors that live from step to step, in graph order."""
        state = [tensor for state in self.states for tensor in state.values()]
        return [*(slot.local for slot in self.slots), *state, *self.others.values(), *self.rates]

    def examples(self) -> list[torch.Tensor]:
        """Example inputs of the graph, in graph order.

        Each batch tensor is a copy: a window may repeat one example, and tracing would take two
        mentions of one tensor for one input.
        """
        return [*self.held(), *(tensor.clone() for tensor in batch_tensors(self.window))]

    def names(self) -> list[str]:
        """A readable name for each graph input, in graph order."""
        rows = zip(self.slots, self.states, strict=True)
        state = [f"{slot.name}:{key}" for slot, state in rows for key in state]
        rates = [f"lr:{number}" for number in range(len(self.rates))]
        batch = [f"batch:{number}" for number in range(len(batch_tensors(self.window)))]
        return [*(slot.name for slot in self.slots), *state, *self.others, *rates, *batch]

    def unflatten(self, flat: Sequence[torch.Tensor]) -> Unflattened:
        """The graph inputs by meaning; the inverse of `examples`."""
        rest: Iterator[torch.Tensor] = iter(flat)
        return Unflattened(
            locals=[next(rest) for _ in self.slots],
            states=[{key: next(rest) for key in state} for state in self.states],
            others={name: next(rest) for name in self.others},
            rates=[next(rest) for _ in self.rates],
            window=trees.mapped(lambda leaf: next(rest) if isinstance(leaf, torch.Tensor) else leaf, list(self.window)),
        )


def batch_tensors(window: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors of a window of micro-batches, in graph order.

    They are made contiguous: the graph holds the strides it was traced with.
    """
    return [leaf.contiguous() for leaf in trees.leaves(list(window)) if isinstance(leaf, torch.Tensor)]


def inputs_of(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    placement: Placement,
    window: Sequence[Any],
) -> Inputs:
    """Collect the inputs of a step; makes the optimizer's state where it has none yet."""
    row = {id(slot.public): number for number, slot in enumerate(placement.slots)}
    states: list[State] = [{} for _ in placement.slots]
    groups: list[Group] = []
    rates = []
    rules = rules_of(optimizer, sharded=any(slot.sharded for slot in placement.slots))
    for rule, group in zip(rules, optimizer.param_groups, strict=True):
        members = tuple(row[id(p)] for p in group["params"] if id(p) in row)
        for number in members:
            if placement.slots[number].sharded and not rule.by_rows:
                raise OptimizerError(
                    f"optimizer {type(optimizer).__name__} updates a row of a parameter by values of other rows (a "
                    'norm, a factorisation), and here each rank has some rows; use strategy="ddp" or another optimizer'
                )
            if placement.slots[number].split is not None and not rule.by_elements:
                raise OptimizerError(
                    f"optimizer {type(optimizer).__name__} updates an element of a parameter by values of others, and "
                    f"kit.TP splits {placement.slots[number].name} over ranks; use an optimizer that treats each "
                    "element apart, such as AdamW, or a strategy without kit.TP"
                )
            states[number] = state_of(optimizer, rule, placement.slots[number])
        groups.append(Group(rule=rule, slot_rows=members))
        if rule.kind == EAGER:
            continue  # the graph needs no rate
        device = placement.slots[members[0]].local.device if members else torch.device("cpu")
        rates.append(torch.tensor(float(group["lr"]), dtype=torch.float64, device=device))
    placed = {slot.name for slot in placement.slots}
    others = {name: p.detach() for name, p in model.named_parameters() if name not in placed}
    others |= dict(model.named_buffers())
    return Inputs(
        slots=placement.slots,
        states=tuple(states),
        groups=tuple(groups),
        others=others,
        rates=tuple(rates),
        window=tuple(window),
    )
