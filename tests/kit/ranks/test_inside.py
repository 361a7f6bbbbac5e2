"""Where the code runs."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from kit.ranks import inside
from kit.ranks.group import Ranks


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group that this process has joined by itself, as under torchrun."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_notebook_is_no_rank() -> None:
    assert not inside.in_rank()
    with pytest.raises(RuntimeError, match=r"this process is no rank: expected code inside a %%ranks cell"):
        inside.rank_device()


def test_a_rank_of_the_kit_knows_its_device(pair: Ranks) -> None:
    assert pair.run(lambda: (inside.in_rank(), inside.rank_device())) == [(True, "cpu")] * 2


def test_a_process_under_torchrun_is_a_rank(torchrun: None) -> None:
    assert inside.in_rank()
    assert inside.rank_device() == "cpu"
