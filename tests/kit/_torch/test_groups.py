"""torch's private names around process groups."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from kit._torch import groups


def test_the_installed_torch_is_known() -> None:
    groups.require_known_torch()


def test_a_torch_without_a_needed_name_is_refused_with_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(dist.distributed_c10d, "_abort_process_group")
    with pytest.raises(groups.UnknownTorchError, match=r"has no distributed_c10d\._abort_process_group"):
        groups.require_known_torch()


def test_collectives_are_counted_for_each_group() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        before = groups.collectives_begun()
        dist.all_reduce(torch.ones(1))
        dist.barrier()
        (name,) = before
        assert groups.collectives_begun() == {name: (before[name][0] + 2, (0,))}
        groups.drop_groups()
        assert not dist.is_initialized()
    finally:
        groups.drop_groups()


def test_a_store_answers_its_clients() -> None:
    store, port = groups.serve_store("127.0.0.1")
    client = groups.prefixed(groups.connect_store("127.0.0.1", port, timeout=timedelta(seconds=5)), "a")
    client.set("key", "value")
    assert store.get("a/key") == b"value"


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[pair.cc:537] Read error [127.0.0.1]:5: Connection reset by peer"), True),
        (RuntimeError("Connection closed by peer [127.0.0.1]:1"), True),
        (dist.DistNetworkError("failed to recv"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("Connection closed by peer"), False),
    ],
)
def test_a_lost_peer_is_told_from_other_errors(error: Exception, lost: bool) -> None:
    assert groups.is_peer_lost(error) is lost


def test_tracing_is_noticed() -> None:
    assert not groups.is_traced()
    with FakeTensorMode():
        assert groups.is_traced()
