"""What an operator's schema says: which arguments it writes, which it returns a view of.

`OpOverload._schema` is private but the only place where torch states this.
What a schema says is kept: passes ask for every node of graphs with thousands of them, and it never changes.
Seen on 2.11 to 2.13: `_schema.arguments[i].alias_info.is_write / before_set`, `_schema.returns`,
`OpOverload.namespace`, `OpOverloadPacket.__name__`, dispatch keys by name.
"""

from functools import cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload


def is_operator(target: object) -> bool:
    """Whether `target` is an operator of the dispatcher with a schema, as `aten.mm.default`."""
    return isinstance(target, OpOverload)


def is_higher_order(target: object) -> bool:
    """Whether `target` takes whole graphs as arguments, as `torch.cond`."""
    return isinstance(target, HigherOrderOperator)


def packet_of(target: Any) -> Any:
    """The operator without its overload: the key of torch's table of FLOP formulas."""
    return target._overloadpacket if isinstance(target, OpOverload) else target


def namespace_and_name(target: Any) -> tuple[str, str]:
    """`("aten", "mm")` for `aten.mm.default`; two empty strings when `target` is no operator."""
    return _name(target) if isinstance(target, OpOverload) else ("", "")


@cache
def _name(target: OpOverload) -> tuple[str, str]:
    return target.namespace, target._schema.name.split("::")[-1]


def written_arguments(target: Any) -> tuple[tuple[int, str], ...]:
    """(position, name) of each argument that the operator writes in place."""
    return _written(target) if isinstance(target, OpOverload) else ()


@cache
def _written(target: OpOverload) -> tuple[tuple[int, str], ...]:
    return tuple(
        (position, argument.name)
        for position, argument in enumerate(target._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def returns_nothing(target: Any) -> bool:
    """Whether the operator only writes its arguments, as `aten._foreach_add_.List`."""
    return isinstance(target, OpOverload) and not target._schema.returns


def returned_argument(target: Any) -> tuple[int, str] | None:
    """(position, name) of the argument whose memory the single return value certainly shares.

    None when there is no such argument, or when the operator is composite: `reshape` is declared a
    view and yet may copy.
    """
    return _returned(target) if isinstance(target, OpOverload) else None


@cache
def _returned(target: OpOverload) -> tuple[int, str] | None:
    if len(target._schema.returns) != 1:
        return None
    returned = target._schema.returns[0].alias_info
    if returned is None:
        return None
    if not returned.is_write and is_composite(target):
        return None
    for position, argument in enumerate(target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.before_set & returned.before_set:
            return position, argument.name
    return None


def is_composite(target: Any) -> bool:
    """Whether the operator is only a name for a chain of others, as `aten.linear`."""
    if not isinstance(target, OpOverload):
        return False
    schema = target._schema
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
