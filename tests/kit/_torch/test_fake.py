"""Fake tensors: shapes without memory, storages with an identity."""

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from kit._torch.fake import as_fake, fake_mode_of, hint_of, is_known, running_fake, storage_identity


def test_a_fake_tensor_keeps_shape_and_belongs_to_its_mode() -> None:
    mode = fake_mode_of([])
    fake = as_fake(mode, torch.zeros(3, 4))
    assert tuple(fake.shape) == (3, 4)
    assert fake_mode_of([1, fake]) is mode
    assert as_fake(mode, fake) is fake


def test_operators_run_on_fakes_without_memory() -> None:
    mode = fake_mode_of([])
    huge = as_fake(mode, torch.empty(1, device="meta").expand(1_000_000, 1_000_000))
    with running_fake(mode):
        assert tuple((huge @ huge).shape) == (1_000_000, 1_000_000)


def test_a_view_has_the_identity_of_its_base_and_a_copy_has_not() -> None:
    base = torch.zeros(6)
    copy = base.clone()
    assert storage_identity(base) == storage_identity(base.view(2, 3)) != storage_identity(copy)


def test_a_size_that_only_a_run_can_tell_is_not_known() -> None:
    unknown = ShapeEnv().create_unbacked_symint()
    assert is_known(3)
    assert not is_known(unknown)
    with pytest.raises(ValueError, match="is known only when the graph runs; expected a fixed shape"):
        hint_of(unknown)
