"""What was built on a group that is gone is refused by name, with the call that builds it again."""

import pytest

from kit.ranks import RankError, Ranks

BUILT = """
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
group = dist.new_group([0, 1])
mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
wrapped = DistributedDataParallel(torch.nn.Linear(2, 1))
x = torch.ones(2)
"""


@pytest.fixture
def rejoined(pair: Ranks) -> Ranks:
    pair.execute(BUILT)
    with pytest.raises(RankError):
        pair.execute("if rank == 1: raise ValueError('boom')\ndist.all_reduce(x)")
    return pair


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("dist.all_reduce(x, group=group)", r"group is a group of a process group that is gone .*dist\.new_group"),
        ("dist.all_reduce(x, group=mesh['tp'].get_group())", r"mesh is a mesh of .* again with init_device_mesh"),
        ("wrapped(x).sum().backward()", r"wrapped is a Distrib.* DistributedDataParallel\(wrapped\.module\)"),
    ],
)
def test_a_stale_object_is_named_with_the_call_that_makes_it(rejoined: Ranks, line: str, said: str) -> None:
    with pytest.raises(RankError, match=said):
        rejoined.execute(line)
    assert rejoined.execute("y = torch.ones(1)\ndist.all_reduce(y)\ny.item()") == [2.0, 2.0]
    assert rejoined.execute("x.shape[0]") == [2, 2]


def test_what_is_built_again_works(rejoined: Ranks) -> None:
    rejoined.execute(BUILT)
    rejoined.execute("dist.all_reduce(x, group=group)\ndist.all_reduce(x, group=mesh['dp'].get_group())")
    assert rejoined.execute("wrapped(x).sum().backward()\nx[0].item()") == [4.0, 4.0]


def test_an_error_of_ones_own_beside_a_live_group_keeps_its_words(pair: Ranks) -> None:
    pair.execute(BUILT)
    with pytest.raises(RankError, match="KeyError: 'weights'"):
        pair.execute("mesh, {}['weights']")
