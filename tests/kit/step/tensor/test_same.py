"""How far values of ranks may be apart, by hand."""

import torch

from kit.step.precision import precision_of
from kit.step.tensor.same import distance, sample, tolerance

INF, NAN = float("inf"), float("nan")


def test_the_distance_is_relative_and_none_between_values_that_are_alike():
    one = torch.tensor([3.0, 4.0])
    assert abs(distance(one, torch.tensor([3.0, 4.5])) - 0.5 / (9 + 4.5**2) ** 0.5) < 1e-12
    assert distance(torch.tensor([NAN, INF]), torch.tensor([NAN, INF])) == 0
    assert not distance(torch.tensor([NAN, 1.0]), torch.tensor([NAN, 2.0])) <= 1
    assert distance(one, one[:1]) == INF
    assert distance(one, torch.zeros(2)) == 5  # no scale to compare with


def test_a_long_value_is_sampled_evenly():
    taken = sample(torch.arange(3 * 4096 + 1))
    assert taken.tolist() == list(range(0, 3 * 4096 + 1, 3))


def test_what_rounding_explains_depends_on_what_was_computed_in():
    single, half = torch.zeros(1), torch.zeros(1, dtype=torch.bfloat16)
    assert tolerance(half) == tolerance(single, precision_of("bf16")) > tolerance(single)
    assert tolerance(single) > tolerance(single.double())
