"""What schemas say, for operators whose behaviour everybody knows."""

import operator

import torch

from kit._torch.schema import (
    is_composite,
    is_higher_order,
    is_operator,
    namespace_and_name,
    packet_of,
    returned_argument,
    written_arguments,
)

ATEN = torch.ops.aten


def test_an_operator_in_place_writes_and_returns_its_first_argument() -> None:
    assert written_arguments(ATEN.add_.Tensor) == ((0, "self"),)
    assert returned_argument(ATEN.add_.Tensor) == (0, "self")


def test_a_foreach_operator_writes_a_list_and_returns_nothing() -> None:
    assert written_arguments(ATEN._foreach_mul_.Scalar) == ((0, "self"),)
    assert returned_argument(ATEN._foreach_mul_.Scalar) is None


def test_an_out_argument_is_written() -> None:
    assert (2, "out") in written_arguments(ATEN.mm.out)


def test_a_view_returns_its_argument_and_reshape_promises_nothing() -> None:
    assert returned_argument(ATEN.t.default) == (0, "self")
    assert returned_argument(ATEN.reshape.default) is None


def test_composite_operators_are_told_from_real_ones() -> None:
    assert is_composite(ATEN.linear.default)
    assert not is_composite(ATEN.mm.default)
    assert not is_composite(operator.add)


def test_other_functions_have_no_schema() -> None:
    assert not is_operator(operator.getitem)
    assert namespace_and_name(operator.getitem) == ("", "")
    assert written_arguments(torch.add) == ()


def test_names_and_packets_lose_the_overload() -> None:
    assert namespace_and_name(ATEN.add_.Tensor) == ("aten", "add_")
    assert packet_of(ATEN.mm.default) is ATEN.mm


def test_an_operator_on_graphs_is_of_higher_order() -> None:
    assert is_higher_order(torch.ops.higher_order.cond)
    assert not is_higher_order(ATEN.mm.default)
